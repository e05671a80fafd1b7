//! Words that the host writes into device memory while a persistent kernel runs.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use super::error::{Asked, CudaError};

/// Writes u64 words of device memory in order, without waiting and without an SM.
#[derive(Debug)]
pub struct WordWriter {
    stream: Arc<CudaStream>,
}

impl WordWriter {
    /// A writer with a stream of its own.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Arc<CudaContext>) -> Result<WordWriter, CudaError> {
        // The highest priority, so that it shares no hardware queue with a persistent kernel, which has the lowest.
        context.bind_to_thread().asked("use the GPU")?;
        let (_, highest) = result::stream::get_priority_range().asked("tell its priorities")?;
        Ok(WordWriter { stream: context.new_stream_with_priority(highest).asked("make a stream")? })
    }

    /// Enqueues one write. Writes take effect in the order in which they were enqueued.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// `address` is of an aligned u64 in device memory that lives until the write has taken effect.
    pub unsafe fn write(&self, address: u64, value: u64) -> Result<(), CudaError> {
        self.stream.context().bind_to_thread().asked("use the GPU")?;
        let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        // SAFETY: the caller vouches for the address.
        unsafe { sys::cuStreamWriteValue64_v2(self.stream.cu_stream(), address, value, flags) }
            .result()
            .asked("write a word in stream order")
    }

    /// Waits until all writes have taken effect.
    ///
    /// # Errors
    /// The driver's.
    pub fn finish(&self) -> Result<(), CudaError> {
        self.stream.synchronize().asked("wait for a stream")
    }
}
