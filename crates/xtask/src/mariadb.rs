//! `cargo xtask mariadb`: MariaDB on ext4, XFS and Adit, side by side, under sysbench.
//!
//! Each cell of the table begins with a device that was just formatted, an installation and fresh
//! tables; then each number of threads and each test runs on them, in the same order everywhere.
//! The durability is equal (`innodb_flush_log_at_trx_commit=1`, no binary log), and so are all
//! options; where ext4 and XFS have an io_uring, Adit has libaio. The memory is not equal: ext4 and
//! XFS have all of the machine's for their page cache, Adit what `--cache` says.
//!
//! Without `--directory` the device is /dev/zram0; with it, ext4 stands for the file system of that
//! directory, and Adit has an image file there.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::{self, Outcome};
use crate::setup;
use crate::zram::{DEVICE, Zram};

/// The help text.
pub(crate) const HELP: &str = "\
  mariadb [OPTION]...   MariaDB on ext4, XFS and Adit on /dev/zram0 (root; refuses when it is in use), as a table:
                        --seconds 5, --pools 32M,128M,512M, --threads 4,8,16,32, --flush O_DIRECT,fsync,
                        --tests write_only,read_write,point_select, --systems ext4,xfs,adit,adit-whole, --rows 50000,
                        --cache 256M, --directory DIR (that and an image in it), --out FILE.csv
";

const PACKAGES: &[&str] = &[
    "mariadb-server-core",
    "mariadb-client-core",
    "sysbench",
    "xfsprogs",
    "e2fsprogs",
];

const DEVICE_SIZE: &str = "4G";
const TABLES: usize = 8;
/// A server that isn't ready by then hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is measured.
pub(crate) struct Options {
    seconds: u64,
    pools: Vec<String>,
    threads: Vec<String>,
    flush: Vec<String>,
    tests: Vec<String>,
    systems: Vec<String>,
    rows: u64,
    cache: String,
    directory: Option<PathBuf>,
    out: PathBuf,
}

fn list(words: &str) -> Vec<String> {
    words.split(',').map(str::to_owned).collect()
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Outcome<Options> {
        let mut options = Options {
            seconds: 5,
            pools: list("32M,128M,512M"),
            threads: list("4,8,16,32"),
            flush: list("O_DIRECT,fsync"),
            tests: list("write_only,read_write"),
            systems: list("ext4,xfs,adit,adit-whole"),
            rows: 50_000,
            cache: "256M".to_owned(),
            directory: None,
            out: process::target_directory().join("mariadb.csv"),
        };
        let mut words = words.iter();
        while let Some(option) = words.next() {
            let value = words.next();
            let text = value.ok_or(format!("{option} needs a value"));
            match *option {
                "--seconds" => options.seconds = process::number(option, value)?,
                "--rows" => options.rows = process::number(option, value)?,
                "--pools" => options.pools = list(text?),
                "--threads" => options.threads = list(text?),
                "--flush" => options.flush = list(text?),
                "--tests" => options.tests = list(text?),
                "--systems" => options.systems = list(text?),
                "--cache" => options.cache = (*text?).to_owned(),
                "--directory" => {
                    let directory = std::path::absolute(text?);
                    options.directory = Some(directory.map_err(|error| error.to_string())?);
                }
                "--out" => options.out = PathBuf::from(text?),
                _ => return Err(format!("do not understand `{option}`\n\n{HELP}")),
            }
        }
        Ok(options)
    }
}

/// Where a server's data lies.
struct Ground<'o> {
    system: &'o str,
    options: &'o Options,
    /// Of sockets, logs, mounts.
    scratch: PathBuf,
    /// Adit's volume.
    volume: PathBuf,
}

impl Ground<'_> {
    fn is_adit(&self) -> bool {
        self.system.starts_with("adit")
    }

    fn mount(&self) -> PathBuf {
        self.scratch.join("mount")
    }

    fn data(&self) -> PathBuf {
        match (&self.options.directory, self.is_adit()) {
            (_, true) => PathBuf::from("/adit/data"),
            (Some(directory), false) => directory.join("data"),
            (None, false) => self.mount().join("data"),
        }
    }

    /// Formats, and mounts what has to be.
    fn make(&self, zram: Option<&Zram>) -> Outcome {
        match zram {
            Some(zram) => zram.set_up(DEVICE_SIZE)?,
            None => self.clear(),
        }
        if self.is_adit() {
            let mut mkfs = self.adit("mkfs");
            mkfs.arg(&self.volume);
            if zram.is_none() {
                mkfs.args(["--size", DEVICE_SIZE]);
            }
            return process::read(&mut mkfs).map(drop);
        }
        if zram.is_some() {
            let mkfs = format!("mkfs.{}", self.system);
            process::read(Command::new(mkfs).args(["-q", DEVICE]))?;
            process::read(Command::new("mount").arg(DEVICE).arg(self.mount()))?;
        }
        Ok(())
    }

    fn clear(&self) {
        let _ = fs::remove_file(&self.volume);
        if let Some(directory) = &self.options.directory {
            let _ = fs::remove_dir_all(directory.join("data"));
        }
    }

    fn unmake(&self, zram: Option<&Zram>) -> Outcome {
        match zram {
            Some(_) if !self.is_adit() => {
                process::read(Command::new("umount").arg(self.mount())).map(drop)
            }
            Some(_) => Ok(()),
            None => {
                self.clear();
                Ok(())
            }
        }
    }

    fn adit(&self, command: &str) -> Command {
        let mut adit = Command::new(process::target_directory().join("release/adit"));
        adit.arg(command);
        adit
    }

    /// A program of MariaDB on this ground, with the options of the cell.
    fn program(&self, name: &str, flush: &str, pool: &str) -> Command {
        let mut command = if self.is_adit() {
            let mut adit = self.adit("run");
            adit.arg(&self.volume);
            adit.args(["--cache-size", &self.options.cache]);
            if self.system == "adit-whole" {
                adit.args(["--atomic-writes", "16K"]);
            }
            adit.args(["--", name]);
            adit
        } else {
            Command::new(name)
        };
        command.args(["--no-defaults", "--user=root"]);
        command.arg(format!("--datadir={}", self.data().display()));
        command.arg(format!("--innodb-flush-method={flush}"));
        command.arg(format!("--innodb-buffer-pool-size={pool}"));
        command.arg("--innodb-flush-log-at-trx-commit=1");
        if self.system == "adit-whole" {
            command.arg("--innodb-doublewrite=0");
        }
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin"));
        command.env("MALLOC_ARENA_MAX", "8");
        command
    }

    /// Bytes written to the block device below, so far.
    fn written_bytes(&self) -> Outcome<u64> {
        let stat = match &self.options.directory {
            None => DEVICE.replace("/dev/", "/sys/block/") + "/stat",
            Some(directory) => {
                let device = fs::metadata(directory).map_err(|error| error.to_string())?;
                let device = device.dev();
                let (major, minor) = (libc::major(device), libc::minor(device));
                format!("/sys/dev/block/{major}:{minor}/stat")
            }
        };
        let text = fs::read_to_string(&stat).map_err(|error| format!("{stat}: {error}"))?;
        let sectors = text.split_whitespace().nth(6).unwrap_or_default();
        let sectors: u64 = sectors.parse().map_err(|_| format!("{stat}: {text}"))?;
        Ok(sectors * 512)
    }
}

/// A running server, ended when dropped.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start(ground: &Ground<'_>, flush: &str, pool: &str) -> Outcome<Server> {
        let socket = ground.scratch.join("socket");
        let log = ground.scratch.join("server.log");
        let file = File::create(&log).map_err(|error| error.to_string())?;
        let mut command = ground.program("mariadbd", flush, pool);
        command
            .arg(format!("--socket={}", socket.display()))
            .arg(format!(
                "--pid-file={}",
                ground.scratch.join("pid").display()
            ))
            .arg(format!("--tmpdir={}", ground.scratch.display()))
            .args(["--skip-networking", "--max-connections=200"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file);
        let child = command.spawn().map_err(|error| error.to_string())?;
        let mut server = Server { child, socket };
        let begin = Instant::now();
        while server.sql("select 1").is_err() {
            let ended = server.child.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || begin.elapsed() > PATIENCE {
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Err(format!("the server doesn't start: {said}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    fn sql(&self, statement: &str) -> Outcome<String> {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "-uroot", "-N", "-e", statement, "-S"]);
        process::read(client.arg(&self.socket))
    }

    fn sysbench(&self, test: &str, options: &Options, words: &[&str]) -> Outcome<String> {
        let mut sysbench = Command::new("sysbench");
        sysbench
            .arg(format!("oltp_{test}"))
            .args(["--db-driver=mysql", "--mysql-user=root", "--rand-seed=1"])
            .arg(format!("--mysql-socket={}", self.socket.display()))
            .arg(format!("--tables={TABLES}"))
            .arg(format!("--table-size={}", options.rows))
            .args(words);
        process::read(&mut sysbench)
    }

    /// Of the process, in seconds; threads of the kernel are not in it.
    fn cpu_seconds(&self) -> Outcome<f64> {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let (_, fields) = text.rsplit_once(')').ok_or("no stat")?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|ticks| ticks.parse::<f64>().ok());
        let ticks = ticks(11).zip(ticks(12)).ok_or("no times")?;
        Ok((ticks.0 + ticks.1) / 100.0)
    }

    fn stop(mut self) -> Outcome {
        self.sql("shutdown")?;
        self.child.wait().map_err(|error| error.to_string())?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What sysbench printed: transactions a second, and a percentile of its histogram in milliseconds.
struct Printed {
    transactions: f64,
    per_second: f64,
    histogram: Vec<(f64, f64)>,
}

impl Printed {
    fn parse(text: &str) -> Option<Printed> {
        let line = text.lines().find(|line| line.contains("transactions:"))?;
        let mut words = line.split_whitespace().skip(1);
        let transactions = words.next()?.parse().ok()?;
        let per_second = words.next()?.trim_start_matches('(').parse().ok()?;
        let bar = |line: &str| {
            let (value, rest) = line.split_once('|')?;
            let count = rest.split_whitespace().last()?;
            Some((value.trim().parse().ok()?, count.parse().ok()?))
        };
        Some(Printed {
            transactions,
            per_second,
            histogram: text.lines().filter_map(bar).collect(),
        })
    }

    fn percentile_ms(&self, percent: f64) -> f64 {
        let all: f64 = self.histogram.iter().map(|(_, count)| count).sum();
        let mut below = 0.0;
        for (value, count) in &self.histogram {
            below += count;
            if below >= all * percent / 100.0 {
                return *value;
            }
        }
        0.0
    }
}

const COLUMNS: &str = "test,pool,flush,threads,system,tps,p95_ms,p99_ms,written_kib_per_transaction,cpu_us_per_transaction";

/// All numbers of threads and all tests on one fresh system.
fn cell(ground: &Ground<'_>, flush: &str, pool: &str, rows: &mut Vec<String>) -> Outcome {
    let mut install = ground.program("mariadb-install-db", flush, pool);
    install.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
    process::read(&mut install)?;
    let options = ground.options;
    let server = Server::start(ground, flush, pool)?;
    server.sql("create database sbtest")?;
    server.sysbench("write_only", options, &["--threads=4", "prepare"])?;
    let time = format!("--time={}", options.seconds);
    for test in &options.tests {
        for threads in &options.threads {
            let number = format!("--threads={threads}");
            let before = (ground.written_bytes()?, server.cpu_seconds()?);
            let said = server.sysbench(test, options, &[&time, &number, "--histogram", "run"])?;
            let after = (ground.written_bytes()?, server.cpu_seconds()?);
            let printed = Printed::parse(&said).ok_or(format!("not understood: {said}"))?;
            let row = format!(
                "{test},{pool},{flush},{threads},{},{:.0},{:.2},{:.2},{:.2},{:.0}",
                ground.system,
                printed.per_second,
                printed.percentile_ms(95.0),
                printed.percentile_ms(99.0),
                (after.0 - before.0) as f64 / 1024.0 / printed.transactions,
                (after.1 - before.1) * 1e6 / printed.transactions,
            );
            println!("{row}");
            rows.push(row);
        }
    }
    server.stop()
}

/// The rows, and of each group Adit's rate divided by the better of the kernel's file systems.
fn table(rows: &[String]) -> String {
    let mut text = String::from(
        "| test | pool | flush | threads | system | tps | × best | p95 ms | p99 ms | KiB written | CPU µs |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let split: Vec<Vec<&str>> = rows.iter().map(|row| row.split(',').collect()).collect();
    let rate = |row: &[&str]| row[5].parse::<f64>().unwrap_or(0.0);
    for row in &split {
        let same = |other: &&Vec<&str>| other[..4] == row[..4] && !other[4].starts_with("adit");
        let best = split.iter().filter(same).map(|row| rate(row));
        let best = best.fold(0.0, f64::max);
        let ratio = match best > 0.0 {
            true => format!("{:.2}", rate(row) / best),
            false => String::new(),
        };
        let (names, numbers) = (row[..5].join(" | "), row[6..].join(" | "));
        writeln!(text, "| {names} | {} | {ratio} | {numbers} |", row[5]).expect("text");
    }
    text
}

/// Measures all cells.
pub(crate) fn run(options: &Options) -> Outcome {
    if !process::is_root() {
        return Err("mariadb needs root: it formats and mounts /dev/zram0".to_owned());
    }
    let zram = match options.directory {
        None => Some(Zram::claim()?),
        Some(_) => None,
    };
    setup::run(PACKAGES)?;
    process::build_release(&["adit-cli", "adit-preload"])?;
    let scratch = PathBuf::from(format!("/tmp/adit-mariadb-{}", std::process::id()));
    let complain = |error: std::io::Error| format!("{}: {error}", scratch.display());
    fs::create_dir_all(scratch.join("mount")).map_err(complain)?;
    let measured = measure(options, zram.as_ref(), &scratch);
    let _ = Command::new("umount")
        .arg(scratch.join("mount"))
        .stderr(Stdio::null())
        .status();
    let _ = fs::remove_dir_all(&scratch);
    let rows = measured?;
    println!("\n{}", table(&rows));
    let text = format!("{COLUMNS}\n{}\n", rows.join("\n"));
    let complain = |error| format!("{}: {error}", options.out.display());
    fs::write(&options.out, text).map_err(complain)?;
    println!("also in {}", options.out.display());
    Ok(())
}

fn measure(options: &Options, zram: Option<&Zram>, scratch: &Path) -> Outcome<Vec<String>> {
    let mut rows = Vec::new();
    println!("{COLUMNS}");
    for flush in &options.flush {
        for pool in &options.pools {
            for system in &options.systems {
                if zram.is_none() && system == "xfs" {
                    continue;
                }
                let ground = Ground {
                    system,
                    options,
                    scratch: scratch.to_owned(),
                    volume: match &options.directory {
                        None => PathBuf::from(DEVICE),
                        Some(directory) => directory.join("mariadb.adit"),
                    },
                };
                ground.make(zram)?;
                let done = cell(&ground, flush, pool, &mut rows);
                ground.unmake(zram)?;
                done?;
            }
        }
    }
    Ok(rows)
}
