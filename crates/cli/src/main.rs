//! The `adit` command: volumes from a shell.
//!
//! Exit codes: 0 done, 1 a failure (on stderr as `adit: …`), 2 wrong usage, 3 `check` or `scrub`
//! found problems. Data goes to stdout, everything else to stderr.

// These panic where stdout or stderr can't be written.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod change;
mod check;
mod compare;
mod ctl;
mod find;
mod fstab;
mod interrupt;
mod loadable;
mod log;
mod lsof;
mod mappings;
mod meeting;
mod mount;
mod names;
mod output;
mod progress;
mod read;
mod run;
mod scrub;
mod serve;
mod times;
mod transfer;
mod volumes;

use adit::Errno;
use adit::log::Filter;
use arguments::{Arguments, Command};
use clap::{CommandFactory, Parser};
use std::io::Write;
use std::process::ExitCode;

/// How a command that did not fail ended.
enum Outcome {
    Done,
    /// Some things failed, each of which was already said.
    Partly,
    /// `check` found problems.
    Problems,
}

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
    let arguments = Arguments::parse_from(fstab::words(std::env::args_os()));
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
        Command::Check(arguments) => return check::check(&arguments, options),
        Command::Scrub(arguments) => return scrub::scrub(&arguments, options),
        Command::Grow(arguments) => volumes::grow(&arguments, options)?,
        Command::Label(arguments) => volumes::label(&arguments, options)?,
        Command::Ls(arguments) => return read::ls(&arguments, options),
        Command::Stat(arguments) => return read::stat(&arguments, options),
        Command::Cat(arguments) => return read::cat(&arguments, options),
        Command::Du(arguments) => return read::du(&arguments, options),
        Command::Df(arguments) => volumes::df(&arguments, options)?,
        Command::Lsof(arguments) => lsof::lsof(&arguments, options)?,
        Command::Ctl(arguments) => ctl::ctl(&arguments, options)?,
        Command::Mappings(arguments) => mappings::list(&arguments, options)?,
        Command::Rm(arguments) => return names::rm(&arguments, options),
        Command::Mkdir(arguments) => return names::mkdir(&arguments, options),
        Command::Rmdir(arguments) => return names::rmdir(&arguments, options),
        Command::Mv(arguments) => names::mv(&arguments, options)?,
        Command::Ln(arguments) => names::ln(&arguments, options)?,
        Command::Cp(arguments) => return transfer::cp(&arguments, options),
        Command::Find(arguments) => return find::find(&arguments, options),
        Command::Chmod(arguments) => return change::chmod(&arguments, options),
        Command::Chown(arguments) => return change::chown(&arguments, options),
        Command::Touch(arguments) => return change::touch(&arguments, options),
        Command::Truncate(arguments) => return change::truncate(&arguments, options),
        Command::Umount(arguments) => mount::umount(&arguments)?,
        Command::Put(arguments) => return transfer::put(&arguments, options),
        Command::Get(arguments) => return transfer::get(&arguments, options),
        Command::Bench(arguments) => volumes::bench(arguments)?,
        Command::Compare(arguments) => return compare::compare(arguments),
        Command::Measure => compare::measure()?,
        Command::Run(arguments) => match run::run(&arguments, options)? {},
        Command::Serve(arguments) => serve::serve(&arguments, options, filter)?,
        Command::Mount(arguments) => mount::mount(&arguments, options, filter)?,
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "adit", &mut text);
            output::stdout().write_all(&text)?;
        }
    }
    Ok(Outcome::Done)
}
