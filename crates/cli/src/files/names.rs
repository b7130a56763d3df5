//! Commands that change names: rm, mkdir, rmdir, mv, ln.

use crate::arguments::{Cat, Ln, Mkdir, Mv, Rm, VolumeArguments};
use crate::output::{Outcome, found};
use adit::{Errno, RenameFlags, Volume};
use std::path::{Path, PathBuf};

/// Changes each path; one that fails stops no other.
pub(crate) fn each(
    options: &VolumeArguments,
    address: &str,
    paths: &[PathBuf],
    change: impl Fn(&Volume, &Path) -> adit::Result<()>,
) -> adit::Result<Outcome> {
    let volume = options.open(address)?;
    let mut outcome = Outcome::Done;
    for path in paths {
        if let Err(error) = change(&volume, path) {
            outcome.failed(&error);
        }
    }
    volume.close()?;
    Ok(outcome)
}

pub(crate) fn rm(arguments: &Rm, options: &VolumeArguments) -> adit::Result<Outcome> {
    let (address, paths) = (&arguments.volume, &arguments.paths);
    each(options, address, paths, |volume, path| {
        let removed = if arguments.recursive {
            volume.remove_dir_all(path)
        } else {
            volume.remove_file(path)
        };
        match removed {
            Err(error) if arguments.force && error.errno() == Errno::NOENT => Ok(()),
            done => done,
        }
    })
}

pub(crate) fn mkdir(arguments: &Mkdir, options: &VolumeArguments) -> adit::Result<Outcome> {
    let (address, paths) = (&arguments.volume, &arguments.paths);
    each(options, address, paths, |volume, path| {
        if arguments.parents {
            volume.create_dir_all(path)
        } else {
            volume.create_dir(path)
        }
    })
}

pub(crate) fn rmdir(arguments: &Cat, options: &VolumeArguments) -> adit::Result<Outcome> {
    let (address, paths) = (&arguments.volume, &arguments.paths);
    each(options, address, paths, |volume, path| {
        volume.remove_dir(path)
    })
}

pub(crate) fn mv(arguments: &Mv, options: &VolumeArguments) -> adit::Result<()> {
    let volume = options.open(&arguments.volume)?;
    if arguments.exchange {
        volume.rename_with(&arguments.from, &arguments.to, RenameFlags::EXCHANGE)?;
        return volume.close();
    }
    let to = into_directory(&volume, &arguments.from, &arguments.to)?;
    let mut flags = RenameFlags::empty();
    flags.set(RenameFlags::NO_REPLACE, arguments.no_clobber);
    volume.rename_with(&arguments.from, to, flags)?;
    volume.close()
}

pub(crate) fn ln(arguments: &Ln, options: &VolumeArguments) -> adit::Result<()> {
    let volume = options.open(&arguments.volume)?;
    let path = into_directory(&volume, &arguments.existing, &arguments.path)?;
    if arguments.symbolic {
        volume.symlink(&arguments.existing, path)?
    } else {
        volume.hard_link(&arguments.existing, path)?
    }
    volume.close()
}

/// `to`, or the name of `from` in it when it is a directory.
pub(crate) fn into_directory(volume: &Volume, from: &Path, to: &Path) -> adit::Result<PathBuf> {
    let is_directory = match volume.metadata(to) {
        // A symbolic link that leads nowhere.
        Err(error) if error.errno() == Errno::LOOP => false,
        there => found(there)?.is_some_and(|there| there.is_dir()),
    };
    match (is_directory, from.file_name()) {
        (true, Some(name)) => Ok(to.join(name)),
        _ => Ok(to.to_owned()),
    }
}
