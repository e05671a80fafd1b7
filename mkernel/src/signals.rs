//! The signals that a rank heeds: SIGUSR1 asks what it is doing, SIGTERM tells it to end with an error that all ranks hear.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use signal_hook::consts::{SIGTERM, SIGUSR1};
use signal_hook::{SigId, flag, low_level};

/// Signals that this process takes as long as this lives. SIGTERM ends the process as usual but for the time in which a session
/// heeds it; keep this until the session's error is reported, or SIGTERM may come first.
#[derive(Debug)]
pub struct Signals {
    flags: Flags,
    ids: Vec<SigId>,
}

/// What has come, and what SIGTERM does.
#[derive(Clone, Debug)]
pub(crate) struct Flags {
    is_asked: Arc<AtomicBool>,
    is_told: Arc<AtomicBool>,
    /// Whether SIGTERM has its usual effect.
    is_usual: Arc<AtomicBool>,
}

impl Signals {
    /// Takes the signals.
    ///
    /// # Errors
    /// The operating system's.
    pub fn take() -> io::Result<Signals> {
        let [is_asked, is_told, is_usual] = [false, false, true].map(|is_up| Arc::new(AtomicBool::new(is_up)));
        let mut signals = Signals { flags: Flags { is_asked, is_told, is_usual }, ids: Vec::new() };
        signals.ids.push(flag::register(SIGUSR1, Arc::clone(&signals.flags.is_asked))?);
        // It stays for good: without it SIGTERM would have no effect at all from the drop on.
        flag::register_conditional_default(SIGTERM, Arc::clone(&signals.flags.is_usual))?;
        signals.ids.push(flag::register(SIGTERM, Arc::clone(&signals.flags.is_told))?);
        Ok(signals)
    }

    pub(crate) fn flags(&self) -> Flags {
        self.flags.clone()
    }
}

impl Flags {
    /// Whether somebody asked since the last call.
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.swap(false, SeqCst)
    }

    /// Whether the process was told to end.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told.load(SeqCst)
    }

    /// From here on SIGTERM only tells, or ends the process as usual again.
    pub(crate) fn set_usual(&self, is_usual: bool) {
        self.is_usual.store(is_usual, SeqCst);
    }

    /// Ends the process as SIGTERM usually does.
    pub(crate) fn end(&self) {
        // It only comes back if the process may not signal itself: then it ends with its error.
        let _ = low_level::emulate_default_handler(SIGTERM);
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.flags.set_usual(true);
        for id in self.ids.drain(..) {
            low_level::unregister(id);
        }
    }
}
