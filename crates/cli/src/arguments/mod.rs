//! The command line, as types. What each command does is in the modules named after them. The file
//! is long because it holds the arguments of all commands: `adit help` reads in one file.

mod change;
mod volume;

pub(crate) use change::{Chmod, Chown, Cp, Find, Touch, Truncate};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use volume::size;
pub(crate) use volume::{TakeoverArgument, VolumeArguments};

/// Adit: a user-space file system for database storage engines.
///
/// VOLUME is the path of an image file or of a block device. PATHs begin at the root of the volume,
/// with or without a leading slash.
///
/// While a process has a volume open, ls, stat, du, df, info and lsof ask that process; other
/// commands are refused.
#[derive(Parser)]
#[command(
    name = "adit",
    version,
    arg_required_else_help = true,
    after_help = "Examples:
  adit mkfs db.adit --size 4G         make a volume in an image file
  adit put db.adit ./data /           copy a directory into it
  adit ls -l db.adit /data            look at it
  adit get db.adit /data ./copy       copy it out again
  adit check db.adit                  is it as it should be? (--repair)
  adit scrub db.adit                  has the device lost anything?
  adit bench --quick                  how fast is it here?

Exit codes: 0 done, 1 something failed, 2 wrong usage, 3 check or scrub found problems."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) volume: VolumeArguments,
    /// Say more on stderr than errors and warnings: what recovery did; -vv: everything
    ///
    /// RUST_LOG=LEVEL or TARGET=LEVEL (error, warn, info, debug) does the same, for targets like
    /// adit_store, too.
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make a volume in an image file or on a block device
    #[command(after_help = "Examples:
  adit mkfs db.adit --size 4G         creates the image file (sparse)
  adit mkfs /dev/nvme0n1 --force      overwrites what is there")]
    Mkfs(Mkfs),
    /// Show sizes, parameters and counters of a volume, and who has it open
    Info(Info),
    /// Check that the volume is as it should be, and repair it; exit code 3 if something is wrong
    ///
    /// A check writes nothing, and looks at volumes that can't be opened, too. A repair shows what
    /// is wrong and what it would do, and asks. It may be interrupted; the next one finishes it.
    #[command(after_help = "Examples:
  adit check db.adit                  what is wrong, and what follows from it
  adit check db.adit --json           the same for programs
  adit check db.adit --repair         shows what is wrong, asks, repairs
  adit check db.adit --repair --yes   repairs without asking
  adit ls db.adit /lost+found         where it puts what has lost its name

Copy the image first if you can: a repair resolves contradictions, and frees what nothing leads to.

Exit codes: 0 nothing (left) wrong, 1 it could not be checked, 2 wrong usage, 3 something is wrong.")]
    Check(Check),
    /// Read all data and metadata, to notice what the device lost; exit code 3 if it did
    ///
    /// What can't be read any more is found on every volume, what a device changed silently on
    /// those made with --data-checksums. It changes no file: write what is lost again from a copy,
    /// or remove it. Data that a crash left without a checksum gets one.
    #[command(after_help = "Examples:
  adit scrub db.adit                  all of it, as fast as it goes
  adit scrub db.adit --rate 50M       50 MiB a second
  adit scrub db.adit --json           for programs

Exit codes: 0 everything is whole, 1 it could not be read, 2 wrong usage, 3 something is lost.")]
    Scrub(Scrub),
    /// Make a volume larger (an image file too)
    Grow(Grow),
    /// Show the volume's label, or give it another one
    Label(Label),
    /// List a directory
    #[command(disable_help_flag = true)]
    Ls(Ls),
    /// Show everything that is known about files
    Stat(Paths),
    /// Write files to standard output
    Cat(Cat),
    /// Show how much space directories take
    Du(Du),
    /// Show how much space the volume has left
    Df(Info),
    /// Show which files the process that has the volume open has open
    Lsof(Lsof),
    /// Show the sessions and pollers of a server, or move a session to another poller
    Ctl(Ctl),
    /// Show what processes keep, or left, in shared memory, and whose it is
    Mappings(Mappings),
    /// Remove files, or trees with -r
    Rm(Rm),
    /// Make directories
    Mkdir(Mkdir),
    /// Remove empty directories
    Rmdir(Cat),
    /// Rename, or move into a directory
    Mv(Mv),
    /// Give a file another name (a hard link), or make a symbolic link with -s
    Ln(Ln),
    /// Copy files and trees inside of the volume, as cp(1)
    Cp(Cp),
    /// List what is below directories, as find(1)
    ///
    /// PATHs, then tests of find: -name -iname -path GLOB, -type b|c|d|f|l|p|s, -size [+-]N[ckMG],
    /// -empty, -mindepth N, -maxdepth N, -print, -print0.
    #[command(after_help = "Examples:
  adit find db.adit / -name '*.log' -size +10M
  adit find db.adit /data -type f -print0")]
    Find(Find),
    /// Change permission bits, as chmod(1)
    Chmod(Chmod),
    /// Change owner and group, as chown(1)
    #[command(disable_help_flag = true)]
    Chown(Chown),
    /// Make empty files, or set their times to now, as touch(1)
    Touch(Touch),
    /// Make files as long as that, as truncate(1)
    Truncate(Truncate),
    /// End a mount
    ///
    /// The volume is closed a moment later. Copies of the mount in other mount namespaces stay, and
    /// the volume with them.
    Umount(Umount),
    /// Copy files and trees into a volume
    ///
    /// With kinds, permissions, owners, times, extended attributes, holes and hard links. Symbolic
    /// links inside a tree are copied as links; LOCAL itself is followed if it is one. A directory
    /// that is there is filled, a file replaced.
    ///
    /// A file is named .NAME.adit-put until it is whole. Whatever ends the copy before, a file that
    /// was to be replaced is as it was, and a new one is not there; so replacing takes room for
    /// both. The next put of that name removes what a killed one left.
    ///
    /// A file that is written meanwhile is named, exit code 1: its copy may be a mixture.
    ///
    /// A tree whose copy was ended (Ctrl-C, a kill, no space) is gone on with by the same command:
    /// it fills the same directory, and leaves files that have size and time of LOCAL's.
    #[command(after_help = "Examples:
  adit put db.adit a.txt /            as /a.txt
  adit put db.adit a.txt /b.txt       as /b.txt
  adit put db.adit ./tree /           as /tree, with everything in it
  adit put db.adit a b c /dir         into the directory /dir
  pg_dump | adit put db.adit - /dump  standard input as /dump")]
    Put(Put),
    /// Copy a file or tree out of a volume
    ///
    /// As put, going on included; a file is named .NAME.adit-get until it is whole. Of a file that can't be read to
    /// its end `adit cat` writes the part before.
    ///
    /// Users other than root become the owners of all files that they get, without trusted.* and
    /// security.* attributes. Root gets everything, programs with the set-user-ID bit
    /// and devices included: of a volume that you don't trust, get it as somebody else.
    #[command(after_help = "Examples:
  adit get db.adit /a.txt .           as ./a.txt
  adit get db.adit / ./all            everything, into the directory ./all
  adit get db.adit /dump - | psql     to standard output, as adit cat")]
    Get(Get),
    /// Measure Adit here, beside the kernel's file system and the bare device
    #[command(after_help = "Examples:
  adit bench --quick                  under a minute, in a temporary image here
  adit bench --against /mnt/xfs       image and competitor in another file system
  adit bench --volume /dev/nvme0n1p3 --against /mnt/ext4
  adit bench --breakdown --quick      where do the microseconds of each operation go?")]
    Bench(Bench),
    /// Compare Adit with file systems of the kernel and the bare device, one after the other on a
    /// device that is overwritten
    #[command(
        after_help = "All that is on the device is lost. It needs root, and mkfs of what is compared (Debian: e2fsprogs, xfsprogs); RocksDB's
rows need db_bench (rocksdb-tools) and what `cargo xtask plugin --release` builds, SQLite's rows adit-sqlite-bench.
LevelDB's rows (ten minutes) are measured with --only leveldb; they need libleveldb1d and adit-preload, too.
Clients of a server are measured with --only clients (a minute a repetition, three with LevelDB).
Nothing else should run on the machine meanwhile.

Examples:
  echo lz4 >/sys/block/zram0/comp_algorithm; echo 4G >/sys/block/zram0/disksize
  adit compare --device /dev/zram0 --suite quick --yes      a device in memory, below ten minutes
  adit compare --device /dev/nvme1n1 --with ext4 --only core --out report"
    )]
    Compare(Compare),
    /// Measure one system, as told on stdin: `compare` starts it
    #[command(hide = true)]
    Measure,
    /// Mount a volume on a directory, for tools that know nothing of Adit
    #[command(
        after_help = "A mount goes through the kernel, with a switch of threads for each request: it is for administration, not the
fast path. It ends with `umount DIR` or a SIGTERM to its process; when that is killed, nothing that was written is
lost, and the volume can be mounted again at once. Without root it takes fusermount3 (Debian package fuse3).
From /etc/fstab: a link /sbin/mount.adit to adit, and a line
  /var/lib/db.adit  /mnt/db  adit  allow_other,cache-size=1G,nofail  0 0

Examples:
  adit mount db.adit /mnt && ls /mnt && umount /mnt
  adit mount db.adit /mnt && adit bench --volume other.adit --against /mnt
                                      what the way through the kernel costs"
    )]
    Mount(Mount),
    /// Serve volumes to other processes, by shared memory
    ///
    /// Each of them opens a volume as unix:SOCKET (Rust, C, the plugins, every command), or as
    /// unix:SOCKET,NAME if there are several. Permission bits bind all but root and the server's
    /// own user. SIGTERM ends it after what is under way; killed, it loses nothing that was
    /// written. With --mount all other programs see the same files in a directory, by the kernel.
    #[command(
        after_help = "A volume's name is the last component of its address, or what stands before a =.

Examples:
  adit serve db.adit --socket /run/adit/db.sock
  adit serve db.adit --socket /run/adit/db.sock --mount /mnt/db
  adit serve orders=/dev/nvme0n1 logs=/dev/nvme1n1 --socket /run/adit.sock --mode 0666 --pollers 2 --cpus 2,3
  adit ls unix:/run/adit.sock,orders /"
    )]
    Serve(Serve),
    /// Start a program that sees a volume as a directory, without a mount
    ///
    /// The volume is inside the program (its file calls go to a library that the loader puts before
    /// the C library): only it and the programs that it starts see it. Killed, they lose nothing that
    /// they wrote.
    #[command(
        after_help = "Programs must be linked dynamically against glibc; others are refused. What they can do, and what not:
docs/using/programs.md. The volume is opened by the first call that needs it.

Examples:
  adit run db.adit -- sqlite3 /adit/app.db
  adit run db.adit --prefix /data -- cp -r ./tree /data/"
    )]
    Run(Run),
    /// Print completions for a shell
    #[command(after_help = "Example:
  adit completions bash > ~/.local/share/bash-completion/completions/adit")]
    Completions {
        /// Which one
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

#[derive(Args)]
pub(crate) struct Mount {
    /// Image file or block device
    pub(crate) volume: String,
    /// Where to
    pub(crate) directory: PathBuf,
    /// As mount(8) and /etc/fstab say it: ro, rw, noatime, allow_other; what systemd and mount read
    /// themselves (noauto, nofail, user, x-…) is left to them
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub(crate) options: Vec<String>,
    /// Refuse changes
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Other users may use it too, as far as permission bits let them
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Stay until it is unmounted, instead of going on in the background
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Reading never changes times of access (else the rule of `relatime` does)
    #[arg(long)]
    pub(crate) noatime: bool,
    /// Workers of the volume, up to 16, so that threads with files of their own don't wait for each
    /// other: an experiment
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) workers: u32,
    /// Append messages to this file (else: stderr in the foreground, syslog in the background)
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Umount {
    /// Where it is mounted
    pub(crate) directory: PathBuf,
    /// Now, though files are open there; it ends with the last one
    #[arg(long, short)]
    pub(crate) lazy: bool,
}

#[derive(Args)]
pub(crate) struct Serve {
    /// Image files or block devices, each as ADDRESS or NAME=ADDRESS
    #[arg(required = true)]
    pub(crate) volumes: Vec<String>,
    /// The socket that sessions connect to
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: PathBuf,
    /// Permission bits of the socket: the users who can connect
    #[arg(long, value_name = "BITS", default_value = "0600", value_parser = permission_bits)]
    pub(crate) mode: u32,
    /// Mount the volume on this empty directory as well; with several volumes: NAME=DIR, for each
    /// one
    ///
    /// Programs see there what sessions do, and the reverse, at once. Takes root or fusermount3.
    #[arg(long, value_name = "[NAME=]DIR")]
    pub(crate) mount: Vec<String>,
    /// Users other than the server's may use the mounts, too, as far as permission bits let them
    #[arg(long, requires = "mount")]
    pub(crate) allow_other: bool,
    /// Most threads that poll sessions; no more of them work than the load needs
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) pollers: usize,
    /// Workers of each volume, up to 16, so that sessions with files of their own don't wait for
    /// each other: an experiment
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) workers: u32,
    /// Cores of the pollers, one each (else they run anywhere)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,
    /// A poller without work spins so many microseconds before it sleeps
    #[arg(long, value_name = "U", default_value_t = 50, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub(crate) spin_us: u64,
    /// The server's priority, as nice(1) counts it (else the highest that it may have)
    ///
    /// Where sessions outnumber cores all of them wait for a poller that has no core.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    pub(crate) nice: Option<i32>,
    /// Most sessions at a time
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) sessions_max: usize,
    /// Wait so many seconds for the sessions of the last server before others go on; a program that
    /// connects meanwhile waits for 10 s at most
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(..=3600))]
    pub(crate) grace: u64,
    /// Append messages to this file (else: stderr)
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Ends when it has no session any more, and removes the directory of the socket: what
    /// processes of `adit run` begin that have lost the one that had the volume
    #[arg(long, hide = true)]
    pub(crate) while_used: bool,
    /// Begins when the process that has the volume has ended, if it has left sessions
    #[arg(long, hide = true, requires = "while_used")]
    pub(crate) when_left: bool,
}

/// Permission bits, in octal.
fn permission_bits(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(bits) if bits <= 0o777 => Ok(bits),
        _ => Err("permission bits are octal, up to 777".to_owned()),
    }
}

#[derive(Args)]
pub(crate) struct Run {
    /// Image file or block device, or unix:SOCKET of a server
    pub(crate) volume: String,
    /// The directory as which the program sees the volume; it need not exist
    #[arg(long, value_name = "DIR", default_value = "/adit")]
    pub(crate) prefix: PathBuf,
    /// The volume may cover a directory that is not empty
    ///
    /// Calls that go past the C library still find what is there.
    #[arg(long)]
    pub(crate) cover: bool,
    /// System calls that the program makes without the C library are the volume's, too
    ///
    /// Those of the program itself, not of its libraries. Each then costs some microseconds more.
    #[arg(long)]
    pub(crate) catch_system_calls: bool,
    /// Writes of pages up to this size survive a crash whole or not at all, like 16K
    ///
    /// A page is a power of two of bytes, at a multiple of its size. So InnoDB needs no doublewrite
    /// buffer. Without it, that holds for a sector of the device.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) atomic_writes: Option<u64>,
    /// The volume is inside one process of the program: its children share nothing of it
    ///
    /// Refuses the address of a server.
    #[arg(long)]
    pub(crate) embedded: bool,
    /// Nothing of the volume is executed or loaded as a library: EACCES
    #[arg(long)]
    pub(crate) noexec: bool,
    /// Other programs can use the volume meanwhile, too, as unix:SOCKET
    ///
    /// Those of the same user and of root. The first process of the program that uses the volume
    /// has it, the others use it through the socket; they wait 10 seconds for the next one if it
    /// ends.
    #[arg(long, value_name = "SOCKET")]
    pub(crate) share: Option<PathBuf>,
    /// libadit_preload.so, if it is not beside this program
    #[arg(long, value_name = "FILE")]
    pub(crate) library: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<std::ffi::OsString>,
}

#[derive(Args)]
pub(crate) struct Mkfs {
    pub(crate) volume: String,
    /// Size of the volume, like 4G; an image file is created or grown to it
    #[arg(long, value_parser = size)]
    pub(crate) size: Option<u64>,
    /// Preferred unit of allocation, like 64K
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) cluster_size: Option<u64>,
    /// Size of the journal, like 64M
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) journal_size: Option<u64>,
    /// Give every page of data a checksum, to notice what the device changes silently
    #[arg(long)]
    pub(crate) data_checksums: bool,
    /// Write all of the image once, so that later syncs don't wait for its file system to find room
    #[arg(long)]
    pub(crate) preallocate: bool,
    /// A name for people
    #[arg(long, default_value = "")]
    pub(crate) label: String,
    /// Overwrite what is there (never a volume that is in use)
    #[arg(long, short)]
    pub(crate) force: bool,
}

#[derive(Args)]
pub(crate) struct Info {
    pub(crate) volume: String,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Check {
    pub(crate) volume: String,
    /// As JSON; of a name that is not UTF-8 all bytes, in hexadecimal, in a second field:
    /// name_bytes, path_bytes, target_bytes
    #[arg(long)]
    pub(crate) json: bool,
    /// Repair what can be repaired
    #[arg(long)]
    pub(crate) repair: bool,
    /// Don't ask
    #[arg(long, short, requires = "repair")]
    pub(crate) yes: bool,
}

#[derive(Args)]
pub(crate) struct Mappings {
    /// Delete these files of dead processes: what exists only there is lost
    #[arg(long, value_name = "FILE")]
    pub(crate) remove: Vec<PathBuf>,
    /// Delete all of dead processes that hold nothing unsaved and whose volume isn't there any more
    #[arg(long)]
    pub(crate) remove_gone: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Scrub {
    pub(crate) volume: String,
    /// Bytes a second at most, like 50M
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) rate: Option<u64>,
    /// Write nothing, not even checksums that are missing
    #[arg(long)]
    pub(crate) read_only: bool,
    /// As JSON; of a name that is not UTF-8 all bytes, in hexadecimal, in a second field:
    /// name_bytes, path_bytes, target_bytes
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Grow {
    pub(crate) volume: String,
    /// The new size, like 8G; --size SIZE says it, too, as with mkfs
    #[arg(value_parser = size, required_unless_present = "option")]
    pub(crate) size: Option<u64>,
    #[arg(long = "size", id = "option", value_name = "SIZE", value_parser = size, conflicts_with = "size", hide = true)]
    pub(crate) size_option: Option<u64>,
}

#[derive(Args)]
pub(crate) struct Label {
    pub(crate) volume: String,
    /// The new one, of at most 64 bytes; empty: none
    pub(crate) label: Option<String>,
}

#[derive(Args)]
pub(crate) struct Ls {
    pub(crate) volume: String,
    #[arg(default_value = "/")]
    pub(crate) path: PathBuf,
    /// With mode, links, owner, size and time
    #[arg(short)]
    pub(crate) long: bool,
    /// Also . and .. (other names that begin with a dot are always listed)
    #[arg(long, short)]
    pub(crate) all: bool,
    /// With -l, sizes like 1.5K and 23M
    #[arg(long, short = 'h')]
    pub(crate) human_readable: bool,
    /// Directories with everything in them
    #[arg(long, short = 'R', conflicts_with = "json")]
    pub(crate) recursive: bool,
    #[arg(long, action = clap::ArgAction::Help, help = "Print help")]
    pub(crate) help: Option<bool>,
    /// As JSON; of a name that is not UTF-8 all bytes, in hexadecimal, in a second field:
    /// name_bytes, path_bytes, target_bytes
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Paths {
    pub(crate) volume: String,
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// As JSON; of a name that is not UTF-8 all bytes, in hexadecimal, in a second field:
    /// name_bytes, path_bytes, target_bytes
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Cat {
    pub(crate) volume: String,
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Du {
    pub(crate) volume: String,
    #[arg(default_value = "/")]
    pub(crate) path: PathBuf,
    /// Only the total
    #[arg(long, short)]
    pub(crate) summarize: bool,
    /// As JSON; of a name that is not UTF-8 all bytes, in hexadecimal, in a second field:
    /// name_bytes, path_bytes, target_bytes
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Lsof {
    pub(crate) volume: String,
    /// With their names, for which the whole tree is searched
    #[arg(long, short)]
    pub(crate) paths: bool,
    /// As JSON; of a name that is not UTF-8 all bytes, in hexadecimal, in a second field:
    /// name_bytes, path_bytes, target_bytes
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Ctl {
    /// unix:SOCKET
    pub(crate) volume: String,
    /// Move this session to this poller, from 0 on; the server may move it again
    #[arg(long = "move", num_args = 2, value_names = ["SESSION", "POLLER"])]
    pub(crate) move_session: Vec<u64>,
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Rm {
    pub(crate) volume: String,
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Directories with everything in them
    #[arg(long, short)]
    pub(crate) recursive: bool,
    /// What isn't there is no error
    #[arg(long, short)]
    pub(crate) force: bool,
}

#[derive(Args)]
pub(crate) struct Mkdir {
    pub(crate) volume: String,
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Also the directories above that are missing; existing ones are no error
    #[arg(long, short)]
    pub(crate) parents: bool,
}

#[derive(Args)]
pub(crate) struct Mv {
    pub(crate) volume: String,
    pub(crate) from: PathBuf,
    pub(crate) to: PathBuf,
    /// Fail if the target exists
    #[arg(long, short, conflicts_with = "exchange")]
    pub(crate) no_clobber: bool,
    /// Swap the two
    #[arg(long)]
    pub(crate) exchange: bool,
}

#[derive(Args)]
pub(crate) struct Ln {
    pub(crate) volume: String,
    /// What the link leads to; with -s it is kept as it is, and need not exist
    pub(crate) existing: PathBuf,
    pub(crate) path: PathBuf,
    /// Make a symbolic link
    #[arg(long, short)]
    pub(crate) symbolic: bool,
}

#[derive(Args)]
pub(crate) struct Put {
    pub(crate) volume: String,
    /// Files and directories to copy; -: standard input, into a file
    #[arg(required = true, value_name = "LOCAL")]
    pub(crate) local: Vec<PathBuf>,
    /// Where to
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) keep: Keep,
}

#[derive(Args)]
pub(crate) struct Get {
    pub(crate) volume: String,
    /// File or directory to copy
    pub(crate) path: PathBuf,
    /// Where to; -: a file to standard output
    pub(crate) local: PathBuf,
    #[command(flatten)]
    pub(crate) keep: Keep,
}

/// What a copy keeps.
#[derive(Args)]
pub(crate) struct Keep {
    /// Don't keep owners, nor set-user-ID and set-group-ID bits of others: what is copied is yours
    #[arg(long)]
    pub(crate) no_owner: bool,
    /// Don't keep extended attributes (access control lists and capabilities among them)
    #[arg(long)]
    pub(crate) no_xattrs: bool,
}

#[derive(Args)]
pub(crate) struct Bench {
    /// Under a minute, with small files
    #[arg(long)]
    pub(crate) quick: bool,
    /// What Adit's operations spend their time on, layer by layer; nothing else is measured
    #[arg(long)]
    pub(crate) breakdown: bool,
    /// Measure the cost of a server: the same operations embedded, served, and on
    /// the file system of --against; needs --volume
    #[arg(long, requires = "volume", conflicts_with = "breakdown")]
    pub(crate) served: bool,
    /// An existing volume, instead of a temporary image; what is in it stays
    #[arg(long, value_name = "VOLUME")]
    pub(crate) volume: Option<String>,
    /// Compare with the file system of this directory, and put the temporary image there
    #[arg(long, value_name = "DIR")]
    pub(crate) against: Option<PathBuf>,
    /// Threads of the rows that have several
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: u32,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Compare {
    /// Block device to compare on; its content is lost
    #[arg(long, value_name = "DEV")]
    pub(crate) device: PathBuf,
    /// File systems of the kernel, of ext4, xfs, btrfs, f2fs
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "ext4,xfs"
    )]
    pub(crate) with: Vec<String>,
    /// How thorough
    #[arg(long, value_enum, default_value = "quick")]
    pub(crate) suite: SuiteArgument,
    /// Only these groups of rows, like core,rocksdb (threads: threads-loop and its like, too)
    #[arg(long, value_name = "GROUPS", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Folder for temporary image files of the local disk, which some groups measure on
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) images: PathBuf,
    /// Measure everything so often
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) repetitions: u32,
    /// At most so many pollers of the server, where one is measured
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) pollers: u32,
    /// Folder for report.html, report.md, report.json and the pictures
    #[arg(long, value_name = "DIR", default_value = "adit-compare")]
    pub(crate) out: PathBuf,
    /// Overwrite the device even if it holds data
    #[arg(long)]
    pub(crate) force: bool,
    /// Don't ask
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `--suite`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum SuiteArgument {
    /// Below ten minutes on two cores
    Quick,
    /// About an hour and a half on two cores
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
