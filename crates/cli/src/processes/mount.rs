//! `adit mount`.

use super::fstab;
use crate::arguments::{Mount, Umount, VolumeArguments};
use crate::output;
use crate::output::log;
use adit::log::Filter;
use adit::{Address, Error, Result};
use adit_fuse::MountOptions;
use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, WaitOptions};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Mounts; in the background unless told otherwise, and then returns when the mount answers.
pub(crate) fn mount(arguments: &Mount, options: &VolumeArguments, filter: Filter) -> Result<()> {
    if let Some(path) = &arguments.log {
        log::to_file(filter.clone(), log::open_file(path)?)?;
    }
    if arguments.foreground {
        return serve(arguments, options, || Ok(()));
    }
    // A child, before there is anything that a child could not have: a thread, a volume.
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error().into()),
        0 => {
            drop(reader);
            let mut parent = Some(File::from(writer));
            // Opened first: once there is a mount, nothing fails for want of a descriptor.
            let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
            let served = null.map_err(|errno| io::Error::from(errno).into());
            let served = served.and_then(|null| {
                serve(arguments, options, || {
                    if arguments.log.is_none() {
                        leave_stderr(filter);
                    }
                    Ok(in_background(&null, &mut parent)?)
                })
            });
            if let Err(error) = &served {
                match parent {
                    Some(mut parent) => _ = parent.write_all(error.to_string().as_bytes()),
                    None => tracing::error!(volume = arguments.volume, %error, "the mount ends"),
                }
            }
            std::process::exit(i32::from(served.is_err()));
        }
        child => {
            drop(writer);
            let mut said = String::new();
            File::from(reader).read_to_string(&mut said)?;
            match said.as_str() {
                READY => Ok(()),
                "" => Err(Error::with(
                    adit::Errno::IO,
                    format!(
                        "the process that serves the mount ended {}",
                        how_ended(child)
                    ),
                )),
                _ => {
                    output::tell(&format!("adit: {}", output::plain(&said)));
                    std::process::exit(1);
                }
            }
        }
    }
}

/// `adit umount`.
pub(crate) fn umount(arguments: &Umount) -> Result<()> {
    adit_fuse::unmount(&arguments.directory, arguments.lazy)
}

/// How a child ended that has said nothing.
fn how_ended(child: i32) -> String {
    let child = Pid::from_raw(child);
    let ended = rustix::process::waitpid(child, WaitOptions::empty());
    match ended.ok().flatten().map(|(_, status)| status) {
        Some(status) if status.signaled() => {
            format!("by signal {}", status.terminating_signal().unwrap_or(0))
        }
        _ => "without a word".into(),
    }
}

/// The child's message when the mount answers.
const READY: &str = "\0mounted";

fn serve(
    arguments: &Mount,
    options: &VolumeArguments,
    ready: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let directory = arguments.directory.as_path();
    if Address::parse(&arguments.volume).is_served() {
        let what = format!(
            "mount {} through a server: it mounts its volume itself (adit serve --mount)",
            arguments.volume
        );
        return Err(Error::with(adit::Errno::OPNOTSUPP, what));
    }
    let has = |name: &str| arguments.options.iter().any(|option| option == name);
    for option in &arguments.options {
        let is_known = ["ro", "noatime", "allow_other"].contains(&option.as_str());
        if !is_known && !fstab::is_others(option) {
            let what = format!("mount with -o {option}: there is no such option");
            return Err(Error::with(adit::Errno::INVAL, what));
        }
    }
    let read_only = arguments.read_only || has("ro");
    let volume = if read_only {
        options.open_to_read(&arguments.volume)?
    } else {
        options.open_to_mount(&arguments.volume, arguments.workers)?
    };
    let mount_options = MountOptions {
        read_only,
        allow_other: arguments.allow_other || has("allow_other"),
        no_access_times: arguments.noatime || has("noatime"),
    };
    adit_fuse::mount(
        volume,
        &std::path::absolute(directory)?,
        &mount_options,
        ready,
    )
}

/// Sends messages to syslog, since a mount in the background has no stderr.
fn leave_stderr(filter: Filter) {
    let kept = log::Syslog::connect(Path::new(log::SYSLOG))
        .map_err(|error| log::say_that_nobody_hears(&error))
        .is_ok_and(|syslog| log::to_syslog(filter, syslog).is_ok());
    if !kept {
        let _ = adit::log::stop();
    }
}

/// Leaves the terminal and the directory, and tells the parent, which waits for the end of the
/// pipe.
fn in_background(null: &OwnedFd, parent: &mut Option<File>) -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::chdir("/")?;
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)?;
    if let Some(mut parent) = parent.take() {
        parent.write_all(READY.as_bytes())?;
    }
    Ok(())
}
