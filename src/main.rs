//! The command `cableway`; see `cableway --help`.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
