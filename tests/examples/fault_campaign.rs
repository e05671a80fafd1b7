//! Runs the fault campaign: `fault_campaign [first seed] [count]`. Status 1 if a seed ends in neither the right bits nor a fault
//! that its harm explains.

use std::process::ExitCode;
use std::time::Instant;

use mkernel_tests::campaign::Tally;

fn main() -> ExitCode {
    let numbers: Result<Vec<u64>, _> = std::env::args().skip(1).map(|word| word.parse()).collect();
    let (first, count) = match numbers.as_deref() {
        Ok([]) => (0, 2000),
        Ok([first]) => (*first, 2000),
        Ok([first, count]) => (*first, *count),
        _ => {
            eprintln!("usage: fault_campaign [first seed] [count]");
            return ExitCode::from(2);
        }
    };
    let start = Instant::now();
    let tally = Tally::run(first, count);
    print!("{tally}");
    let rate = count as f64 / start.elapsed().as_secs_f64();
    println!("{count} seeds from {first}, {} findings, {rate:.0} seeds/s", tally.findings.len());
    ExitCode::from(u8::from(!tally.findings.is_empty()))
}
