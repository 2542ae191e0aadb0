//! The `spoolbox` program.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    spoolbox::cli::main()
}
