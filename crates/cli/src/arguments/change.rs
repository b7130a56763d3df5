//! The arguments of the commands that change files, and of find: as those of the Unix commands of
//! the same names, behind the volume.

use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Cp {
    pub(crate) volume: String,
    #[arg(required = true)]
    pub(crate) from: Vec<PathBuf>,
    pub(crate) to: PathBuf,
    /// Directories with everything in them; links as links
    #[arg(long, short, visible_short_alias = 'R')]
    pub(crate) recursive: bool,
    /// As -r, and keep owners, modes, times, extended attributes and hard links
    #[arg(long, short)]
    pub(crate) archive: bool,
    /// Keep owners, modes and times
    #[arg(short)]
    pub(crate) preserve: bool,
    /// Leave files that are there
    #[arg(long, short)]
    pub(crate) no_clobber: bool,
}

#[derive(Args)]
pub(crate) struct Find {
    pub(crate) volume: String,
    /// Where to begin (else /), and what to find
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PATH|TEST"
    )]
    pub(crate) words: Vec<std::ffi::OsString>,
}

#[derive(Args)]
pub(crate) struct Chmod {
    pub(crate) volume: String,
    /// Octal (0644), or like u+x,go-w; - before letters takes bits away
    #[arg(allow_hyphen_values = true)]
    pub(crate) mode: String,
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Directories with everything in them; symbolic links there are left
    #[arg(long, short = 'R')]
    pub(crate) recursive: bool,
}

#[derive(Args)]
pub(crate) struct Chown {
    pub(crate) volume: String,
    /// USER, USER:GROUP, or :GROUP, by name or number; USER: is that user's own group
    pub(crate) owner: String,
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Directories with everything in them; symbolic links there themselves
    #[arg(long, short = 'R')]
    pub(crate) recursive: bool,
    /// Symbolic links themselves, not what they lead to
    #[arg(long, short = 'h', id = "link")]
    pub(crate) no_dereference: bool,
    #[arg(long, action = clap::ArgAction::Help, help = "Print help")]
    pub(crate) help: Option<bool>,
}

#[derive(Args)]
pub(crate) struct Touch {
    pub(crate) volume: String,
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Only the time of access
    #[arg(short)]
    pub(crate) access: bool,
    /// Only the time of change
    #[arg(short)]
    pub(crate) modification: bool,
    /// Make no file
    #[arg(long, short = 'c')]
    pub(crate) no_create: bool,
    /// The times of this file of the volume, instead of now
    #[arg(long, short, value_name = "PATH", group = "when")]
    pub(crate) reference: Option<PathBuf>,
    /// This time, instead of now: 2026-11-28 [03:48[:06[.5]]] [Z|UTC|+01:00], @SECONDS since 1970,
    /// yesterday, "2 days ago", …
    #[arg(long, short, value_name = "DATE", group = "when")]
    pub(crate) date: Option<String>,
    /// This time, instead of now: [[CC]YY]MMDDhhmm[.ss]
    #[arg(short = 't', value_name = "STAMP", group = "when")]
    pub(crate) stamp: Option<String>,
}

#[derive(Args)]
pub(crate) struct Truncate {
    pub(crate) volume: String,
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// The size, like 4K. +, - by so much; <, > at most, at least; /, % rounded down, up to a multiple
    #[arg(
        long,
        short,
        value_name = "SIZE",
        allow_hyphen_values = true,
        required_unless_present = "reference"
    )]
    pub(crate) size: Option<String>,
    /// The size of this file of the volume
    #[arg(long, short, value_name = "PATH", conflicts_with = "size")]
    pub(crate) reference: Option<PathBuf>,
    /// Make no file
    #[arg(long, short = 'c')]
    pub(crate) no_create: bool,
}
