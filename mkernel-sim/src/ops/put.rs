//! Put: the ticket that stands for it. Carrying it is the transport's part.

use mkernel_core::{Program, PutId, Ticket};

use crate::host::Host;

/// The ticket of a put whose waits hold: it carries the number of rows that memory says, if the put is counted.
pub(crate) fn ticket(host: &Host, program: &Program, put: PutId) -> Ticket {
    let rows = program.put(put).count.map_or(0, |count| {
        let mut bytes = [0; 8];
        host.memory.gather(&count, &mut bytes);
        // More than fits is more than any plan allows, and the proxy refuses it.
        u32::try_from(u64::from_le_bytes(bytes)).unwrap_or(u32::MAX)
    });
    Ticket::new(put.0.into(), rows).expect("validate proved that put numbers fit a ticket")
}
