//! `adit mount`.

use crate::arguments::{Mount, VolumeArguments};
use adit::{Error, Result};
use adit_fuse::MountOptions;
use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_setfd};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

/// Mounts; in the background unless told otherwise, and then returns when the mount is there.
pub(crate) fn mount(arguments: &Mount, options: &VolumeArguments) -> Result<()> {
    if arguments.foreground {
        return serve(arguments, options, || ());
    }
    // A child, before there is anything that a child could not have: a thread, a volume.
    let (reader, writer) = rustix::pipe::pipe().map_err(Error::from)?;
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error().into()),
        0 => {
            drop(reader);
            let mut status = File::from(writer);
            let served = serve(arguments, options, || in_background(&mut status));
            if let Err(error) = served {
                // Nobody reads it any more if the mount was there once.
                let _ = status.write_all(error.to_string().as_bytes());
                std::process::exit(1);
            }
            std::process::exit(0);
        }
        _ => {
            drop(writer);
            let mut said = String::new();
            File::from(reader).read_to_string(&mut said)?;
            match said.strip_prefix(READY) {
                Some(_) => Ok(()),
                None if said.is_empty() => Err(Error::with(
                    adit::Errno::IO,
                    "the process that serves the mount ended without a word",
                )),
                None => {
                    eprintln!("adit: {}", crate::output::plain(&said));
                    std::process::exit(1);
                }
            }
        }
    }
}

/// What the child says when the mount is there.
const READY: &str = "mounted";

fn serve(arguments: &Mount, options: &VolumeArguments, ready: impl FnOnce()) -> Result<()> {
    let directory = arguments.directory.as_path();
    let volume = match arguments.read_only {
        true => options.open_to_read(&arguments.volume)?,
        false => options.open(&arguments.volume)?,
    };
    let mount_options = MountOptions {
        read_only: arguments.read_only,
        allow_other: arguments.allow_other,
        no_access_times: arguments.noatime,
    };
    adit_fuse::mount(
        volume,
        &std::path::absolute(directory)?,
        &mount_options,
        ready,
    )
}

/// Leaves the terminal and the directory, and tells the parent, which waits for the end of the pipe.
fn in_background(status: &mut File) {
    let _ = status.write_all(READY.as_bytes());
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir(Path::new("/"));
    let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty()) else {
        return;
    };
    let _ = rustix::stdio::dup2_stdin(&null);
    let _ = rustix::stdio::dup2_stdout(&null);
    let _ = rustix::stdio::dup2_stderr(&null);
    let _ = fcntl_setfd(&null, FdFlags::CLOEXEC);
    // The parent reads to the end.
    let closed = std::mem::replace(status, File::from(null));
    drop(closed);
}
