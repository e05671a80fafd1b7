//! AG+GEMM on one GPU, as virtual ranks of one persistent kernel: exact against the host executor and the oracle, faults,
//! and times. Needs a GPU: `cargo run --release -p mkernel-tests --features cuda --example gpu_slice -- [small|exact|tiles|epochs|sums|faults|times|products|fused]`.

mod exact;
mod faults;
mod sums;
mod times;
mod world;

use std::process::ExitCode;
use std::sync::Arc;

use cudarc::driver::CudaContext;

/// One check: its name and what it found.
type Check = (&'static str, fn(&Arc<CudaContext>) -> Result<String, String>);

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let context = match CudaContext::new(0) {
        Ok(context) => context,
        Err(error) => {
            eprintln!("no GPU: {error}");
            return ExitCode::from(2);
        }
    };
    let checks: [Check; 9] = [
        ("small", exact::small_world),
        ("exact", exact::every_world_and_shape),
        ("tiles", exact::every_world_with_tiles),
        ("epochs", exact::many_epochs_across_the_wrap),
        ("sums", sums::the_gpu_and_the_host_sum_alike),
        ("faults", faults::every_fault_is_typed_and_the_gpu_survives),
        ("times", times::report),
        ("products", times::products),
        ("fused", times::fused),
    ];
    let mut failed = false;
    for (name, check) in checks {
        if !wanted.is_empty() && !wanted.iter().any(|w| w == name) {
            continue;
        }
        let started = std::time::Instant::now();
        match check(&context) {
            Ok(found) => println!("ok   {name}: {found} ({:.1} s)", started.elapsed().as_secs_f64()),
            Err(found) => {
                failed = true;
                println!("FAIL {name}: {found}");
            }
        }
    }
    ExitCode::from(u8::from(failed))
}
