//! The `adit` command: volumes from a shell.
//!
//! Exit codes: 0 done, 1 a failure (on stderr as `adit: …`), 2 wrong usage, 3 `check` or `scrub`
//! found problems. Data goes to stdout, everything else to stderr.

// These panic where stdout or stderr can't be written.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod files;
mod output;
mod processes;
mod transfer;
mod volumes;

use adit::Errno;
use adit::log::Filter;
use arguments::{Arguments, Command};
use clap::{CommandFactory, Parser};
use output::{Outcome, interrupt, log};
use std::io::Write;
use std::process::ExitCode;

/// A write past the limit of file sizes (`ulimit -f`) fails with EFBIG; without this, it ends the
/// process. A handler, since programs that a command starts would inherit SIG_IGN.
fn outlive_the_limit_of_file_sizes() {
    extern "C" fn go_on(_signal: libc::c_int) {}
    let go_on: extern "C" fn(libc::c_int) = go_on;
    // SAFETY: plain calls; the handler does nothing.
    unsafe {
        let before = libc::signal(libc::SIGXFSZ, go_on as libc::sighandler_t);
        if before == libc::SIG_IGN {
            libc::signal(libc::SIGXFSZ, before);
        }
    }
}

fn main() -> ExitCode {
    outlive_the_limit_of_file_sizes();
    let arguments = Arguments::parse_from(processes::words(std::env::args_os()));
    let filter = log::filter(arguments.verbose);
    let outcome = log::to_stderr(filter.clone())
        .and_then(|()| run(arguments.command, &arguments.volume, filter))
        .and_then(|outcome| {
            output::stdout().flush()?;
            Ok(outcome)
        });
    match outcome {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Partly) => ExitCode::from(1),
        Ok(Outcome::Problems) => ExitCode::from(3),
        // The reader of our output has seen enough: `adit ls … | head`.
        Err(error) if error.errno() == Errno::PIPE && output::reader_is_gone() => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&error);
            interrupt::die();
            ExitCode::from(1)
        }
    }
}

fn run(
    command: Command,
    options: &arguments::VolumeArguments,
    filter: Filter,
) -> adit::Result<Outcome> {
    match command {
        Command::Mkfs(arguments) => volumes::mkfs(&arguments)?,
        Command::Info(arguments) => volumes::info(&arguments, options)?,
        Command::Check(arguments) => return volumes::check(&arguments, options),
        Command::Scrub(arguments) => return volumes::scrub(&arguments, options),
        Command::Grow(arguments) => volumes::grow(&arguments, options)?,
        Command::Label(arguments) => volumes::label(&arguments, options)?,
        Command::Ls(arguments) => return files::ls(&arguments, options),
        Command::Stat(arguments) => return files::stat(&arguments, options),
        Command::Cat(arguments) => return files::cat(&arguments, options),
        Command::Du(arguments) => return files::du(&arguments, options),
        Command::Df(arguments) => volumes::df(&arguments, options)?,
        Command::Lsof(arguments) => volumes::lsof(&arguments, options)?,
        Command::Ctl(arguments) => volumes::ctl(&arguments, options)?,
        Command::Mappings(arguments) => volumes::mappings(&arguments, options)?,
        Command::Rm(arguments) => return files::rm(&arguments, options),
        Command::Mkdir(arguments) => return files::mkdir(&arguments, options),
        Command::Rmdir(arguments) => return files::rmdir(&arguments, options),
        Command::Mv(arguments) => files::mv(&arguments, options)?,
        Command::Ln(arguments) => files::ln(&arguments, options)?,
        Command::Cp(arguments) => return transfer::cp(&arguments, options),
        Command::Find(arguments) => return files::find(&arguments, options),
        Command::Chmod(arguments) => return files::chmod(&arguments, options),
        Command::Chown(arguments) => return files::chown(&arguments, options),
        Command::Touch(arguments) => return files::touch(&arguments, options),
        Command::Truncate(arguments) => return files::truncate(&arguments, options),
        Command::Umount(arguments) => processes::umount(&arguments)?,
        Command::Put(arguments) => return transfer::put(&arguments, options),
        Command::Get(arguments) => return transfer::get(&arguments, options),
        Command::Bench(arguments) => volumes::bench(arguments)?,
        Command::Compare(arguments) => return volumes::compare(arguments),
        Command::Measure => volumes::measure()?,
        Command::Run(arguments) => match processes::run(&arguments, options)? {},
        Command::Serve(arguments) => processes::serve(&arguments, options, filter)?,
        Command::Mount(arguments) => processes::mount(&arguments, options, filter)?,
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "adit", &mut text);
            output::stdout().write_all(&text)?;
        }
    }
    Ok(Outcome::Done)
}
