//! MariaDB, as Debian has it, on a volume: `adit run VOLUME -- mariadbd`.
//!
//! A ledger outside of the server notes each commit that the server acknowledged. After a kill
//! every one of them must be there, all tables must be sound, and so must the volume.
//!
//! The long tests run with `cargo xtask programs`.

#[macro_use]
mod support;

use adit_skip::skip;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use support::{LoopDevice, Place, is_root};

/// No start of a server takes this long, however busy the machine is: it hangs.
const LIMIT: Duration = Duration::from_secs(600);

/// Options of every server: small, so that tests are quick. Page and log sizes are also the
/// installation's.
const OPTIONS: &[&str] = &[
    "--no-defaults",
    "--innodb-use-native-aio=0",
    "--innodb-log-file-size=8M",
    "--innodb-buffer-pool-size=24M",
    "--aria-log-file-size=8M",
];

/// A data directory that MariaDB's own script made.
struct Database {
    place: Place,
    /// None: it is the host's.
    volume: Option<String>,
    /// Of `adit run`.
    run: Vec<String>,
    /// Of the server.
    options: Vec<String>,
    /// Short: a socket's path has 107 bytes at most.
    sockets: tempfile::TempDir,
}

impl Database {
    fn install(volume: Option<&str>, place: Place, run: &[&str], options: &[&str]) -> Database {
        let owned =
            |list: &[&str]| -> Vec<String> { list.iter().map(|item| (*item).to_owned()).collect() };
        let data = match volume {
            Some(_) => PathBuf::from("/adit/data"),
            None => place.path("data"),
        };
        let mut database = Database {
            place,
            volume: volume.map(str::to_owned),
            run: owned(&[&["--cache-size", "64M"], run].concat()),
            options: owned(&[OPTIONS, options].concat()),
            sockets: tempfile::tempdir().expect("a directory"),
        };
        let data = format!("--datadir={}", data.display());
        database.options.push(data);
        if is_root() {
            database.options.push("--user=root".to_owned());
        }
        let mut command = database.run("mariadb-install-db");
        command.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
        let output = database.place.end(command);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "mariadb-install-db: {errors}");
        database
    }

    fn image(run: &[&str], options: &[&str]) -> Database {
        let place = Place::new();
        place.ok(&["mkfs", "v.adit", "--size", "1G"]);
        Database::install(Some("v.adit"), place, run, options)
    }

    fn run(&self, program: &str) -> Command {
        let mut command = match &self.volume {
            Some(volume) => {
                let mut command = self.place.command(&["run", volume]);
                command.args(&self.run).args(["--", program]);
                command
            }
            None => Command::new(program),
        };
        command.args(&self.options);
        self.set_environment(&mut command);
        command
    }

    /// A server that starts removes all temporary tables from its directory for them. If all tests
    /// had /tmp, it would remove those of other tests' servers.
    fn set_environment(&self, command: &mut Command) {
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("PATH", format!("{path}:/usr/sbin"))
            .env("TMPDIR", self.sockets.path());
    }

    fn start(&self) -> Server {
        let mut command = self.run("mariadbd");
        let socket = self.sockets.path().join("s");
        let _ = std::fs::remove_file(&socket);
        command
            .arg(format!("--socket={}", socket.display()))
            .arg(format!("--pid-file={}", self.place.path("pid").display()));
        Server::start(command, socket, self.place.path("server.log"))
    }

    /// The volume as a process left it, live or dead.
    fn assert_clean(&self) {
        let volume = self.volume.as_ref().expect("it is on one");
        self.place.ok(&["check", volume]);
    }
}

struct Server {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Server {
    fn start(mut command: Command, socket: PathBuf, log: PathBuf) -> Server {
        let file = File::create(&log).expect("a log");
        let child = command
            .args(["--skip-networking", "--skip-log-error"])
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a descriptor"))
            .stderr(file)
            .spawn()
            .expect("it runs");
        let mut server = Server { child, socket, log };
        let begin = Instant::now();
        while !server.client(&["-e", "select 1"]).0 {
            let ended = server.child.try_wait().expect("a child");
            assert!(ended.is_none(), "{ended:?}: {}", server.said());
            assert!(begin.elapsed() < LIMIT, "it hangs: {}", server.said());
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn client_command(&self) -> Command {
        let mut command = Command::new("mariadb");
        command
            .args(["--no-defaults", "-uroot", "--batch", "--unbuffered", "-S"])
            .arg(&self.socket);
        command
    }

    fn client(&self, arguments: &[&str]) -> (bool, String) {
        let output = self.client_command().args(arguments).output();
        let output = output.expect("a client");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        (output.status.success(), said)
    }

    /// What the statements print, without names of columns.
    fn sql(&self, statements: &str) -> String {
        let (done, said) = self.client(&["-N", "-e", statements]);
        assert!(done, "{statements}: {said}\n{}", self.said());
        said
    }

    fn stop(mut self) {
        self.sql("shutdown");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}: {}", self.said());
        let said = self.said();
        // That there is no io_uring is told; InnoDB takes libaio then.
        let complaint =
            (said.lines()).find(|line| line.contains("adit: ") && !line.contains("uring"));
        assert_eq!(complaint, None, "{said}");
    }

    fn kill(self) {
        drop(self);
    }

    /// `CHECK TABLE … EXTENDED` of all tables finds nothing.
    fn check_tables(&self) {
        let tables = self.sql(
            "select concat('`', table_schema, '`.`', table_name, '`') from information_schema.tables
             where table_type = 'BASE TABLE'
             and table_schema not in ('information_schema', 'performance_schema')",
        );
        let tables: Vec<&str> = tables.lines().collect();
        assert!(tables.len() > 20, "{tables:?}");
        let checked = self.sql(&format!("check table {} extended", tables.join(", ")));
        let is_sound = |line: &&str| line.ends_with("\tstatus\tOK") || line.contains("\tnote\t");
        let unsound: Vec<&str> = checked.lines().filter(|line| !is_sound(line)).collect();
        assert!(unsound.is_empty(), "{unsound:#?}\n{}", self.said());
        assert!(checked.lines().count() >= tables.len(), "{checked}");
    }
}

impl Drop for Server {
    /// A test that fails leaves no server.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that commits one row after the other, and notes what was acknowledged.
struct Ledger {
    client: Child,
    name: u32,
    acknowledged: JoinHandle<u64>,
}

const LEDGER: &str = "create database ledger;
    create table ledger.ledger (client int, number int, padding varchar(2000),
        primary key (client, number)) engine = innodb";

impl Ledger {
    fn start(server: &Server, name: u32) -> Ledger {
        let mut client = server
            .client_command()
            .args(["-N", "ledger"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a client");
        let mut to = client.stdin.take().expect("piped");
        let from = BufReader::new(client.stdout.take().expect("piped"));
        // The client prints a number once the commit before it was acknowledged, and ends with the
        // first error.
        let acknowledged = std::thread::spawn(move || {
            let mut lines = from.lines().map_while(Result::ok);
            let mut acknowledged = 0;
            loop {
                let number = acknowledged + 1;
                let row = format!("{name}, {number}, repeat('{number}', 300)");
                let line = format!("insert into ledger values ({row}); select {number};\n");
                if to.write_all(line.as_bytes()).is_err() {
                    return acknowledged;
                }
                match lines.next() {
                    Some(line) if line == number.to_string() => acknowledged = number,
                    _ => return acknowledged,
                }
            }
        });
        Ledger {
            client,
            name,
            acknowledged,
        }
    }

    /// Once the server is dead: everything that was acknowledged is in the ledger.
    fn end(mut self) -> (u32, u64) {
        let _ = self.client.wait();
        (self.name, self.acknowledged.join().expect("no panic"))
    }
}

/// Each acknowledged row is there; beyond them at most the one that was under way.
fn check_ledgers(server: &Server, ledgers: &[(u32, u64)]) {
    for (name, acknowledged) in ledgers {
        let found = server.sql(&format!(
            "select count(*), coalesce(max(number), 0), coalesce(sum(padding = repeat(number, 300)), 0)
             from ledger.ledger where client = {name}"
        ));
        let found: Vec<u64> = (found.split_whitespace())
            .map(|number| number.parse().expect("a number"))
            .collect();
        let [count, newest, whole] = found[..] else {
            panic!("{found:?}")
        };
        assert!(
            count == newest && count == whole && (0..=1).contains(&(count - acknowledged)),
            "client {name}: {acknowledged} commits were acknowledged, {count} rows are there, \
             the newest is {newest}, {whole} are whole\n{}",
            server.said()
        );
    }
}

#[test]
fn a_server_is_installed_changed_killed_and_recovered_on_a_volume() {
    need!("mariadbd" "mariadb-install-db" "mariadb");
    let database = Database::image(&[], &[]);
    database.assert_clean();
    let server = database.start();
    server.sql(LEDGER);
    server.sql(
        "use ledger;
        create table ledger.m (a int primary key, b text) engine = myisam;
        insert into ledger.m select seq, repeat('m', 300) from seq_1_to_500;
        create table ledger.i (a int primary key, b text) engine = innodb;
        insert into ledger.i select seq, repeat('i', 300) from seq_1_to_500;
        alter table ledger.i add c int, algorithm = copy;
        alter table ledger.i add index (c), algorithm = inplace;
        rename table ledger.i to ledger.j;
        select * from ledger.j into outfile '/adit/j.txt';
        truncate table ledger.j;
        load data infile '/adit/j.txt' into table ledger.j",
    );
    let ledgers = [1, 2].map(|name| Ledger::start(&server, name));
    let begin = Instant::now();
    while server
        .sql("select count(*) from ledger.ledger")
        .trim()
        .len()
        < 3
    {
        assert!(begin.elapsed() < LIMIT, "no commits: {}", server.said());
    }
    server.kill();
    let ledgers = ledgers.map(Ledger::end);
    database.assert_clean();
    let server = database.start();
    check_ledgers(&server, &ledgers);
    let sum = "select count(*), sum(a) from ledger.j; select count(*), sum(a) from ledger.m";
    assert_eq!(server.sql(sum), "500\t125250\n500\t125250\n");
    server.check_tables();
    server.sql("drop database ledger");
    server.stop();
    database.assert_clean();
}

/// `mariadb-backup` copies the files of a server that runs and has the volume, by `--share`.
#[test]
fn a_server_is_backed_up_while_it_runs() {
    need!("mariadbd" "mariadb-install-db" "mariadb" "mariadb-backup");
    // A log that goes on for as long as the backup takes, however busy the machine is.
    let mut database = Database::image(&[], &["--innodb-log-file-size=96M"]);
    let shared = database.sockets.path().join("v").display().to_string();
    database.run.extend(["--share".to_owned(), shared.clone()]);
    let server = database.start();
    server.sql(LEDGER);
    let ledger = Ledger::start(&server, 1);
    let rows = |server: &Server| -> u64 {
        let rows = server.sql("select count(*) from ledger.ledger");
        rows.trim().parse().expect("a number")
    };
    let begin = Instant::now();
    while rows(&server) < 100 {
        assert!(begin.elapsed() < LIMIT, "no commits: {}", server.said());
        std::thread::sleep(Duration::from_millis(10));
    }
    let before = rows(&server);
    let backup = database.place.path("backup");
    let target = format!("--target-dir={}", backup.display());
    let end = |mut command: Command| {
        command.arg(&target);
        let output = database.place.end(command);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    };
    let volume = format!("unix:{shared}");
    let mut copy = database
        .place
        .command(&["run", &volume, "--", "mariadb-backup"]);
    copy.args([
        "--no-defaults",
        "--backup",
        "--user=root",
        "--datadir=/adit/data",
    ])
    .arg(format!("--socket={}", server.socket.display()));
    end(copy);
    server.kill();
    let (_, acknowledged) = ledger.end();
    database.assert_clean();
    let mut prepare = Command::new("mariadb-backup");
    prepare.args(["--no-defaults", "--prepare"]);
    end(prepare);
    let mut command = Command::new("mariadbd");
    let socket = database.sockets.path().join("b");
    database.set_environment(&mut command);
    command
        .args(OPTIONS)
        .arg(format!("--datadir={}", backup.display()))
        .arg(format!("--socket={}", socket.display()))
        .arg(format!(
            "--pid-file={}",
            database.place.path("pid2").display()
        ));
    if is_root() {
        command.arg("--user=root");
    }
    let restored = Server::start(command, socket, database.place.path("restored.log"));
    // All commits that were there when it began, and none with a hole before it.
    let there = rows(&restored);
    let all = before..=acknowledged + 1;
    assert!(all.contains(&there), "{there}, not {all:?}");
    let sound =
        "select max(number) = count(*), min(padding = repeat(number, 300)) from ledger.ledger";
    assert_eq!(restored.sql(sound), "1\t1\n");
    restored.check_tables();
}

#[test]
#[ignore = "long: cargo xtask programs"]
fn statements_print_on_a_volume_what_they_print_on_a_directory() {
    need!("mariadbd" "mariadb-install-db" "mariadb");
    let statements = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/mariadb.sql");
    let options = ["--log-bin=bin", "--innodb-file-per-table=1"];
    let said = |database: &Database| {
        let server = database.start();
        let output = server
            .client_command()
            .args(["-t", "-f"])
            .stdin(File::open(statements).expect("there"))
            .output()
            .expect("a client");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        server.check_tables();
        server.stop();
        said
    };
    let volume = Database::image(&[], &options);
    let directory = Database::install(None, Place::new(), &[], &options);
    let on_volume = said(&volume);
    assert_eq!(on_volume, said(&directory));
    // The one statement that has to fail: its tablespace is gone.
    assert_eq!(on_volume.matches("ERROR").count(), 1, "{on_volume}");
    volume.assert_clean();
}

/// One way to run a server.
struct Way {
    /// A block device instead of an image.
    device: bool,
    run: &'static [&'static str],
    options: &'static [&'static str],
    kills: u32,
}

fn sysbench(server: &Server, arguments: &[&str]) -> Command {
    let mut command = Command::new("sysbench");
    command
        .args(["oltp_write_only", "--db-driver=mysql", "--mysql-user=root"])
        .arg(format!("--mysql-socket={}", server.socket.display()))
        .args(["--tables=4", "--table-size=20000", "--threads=4"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Kills a server again and again while sysbench and ledgers write.
fn killed(way: &Way) {
    let place = Place::new();
    place.ok(&["mkfs", "v.adit", "--size", "1G"]);
    let device = way.device.then(|| LoopDevice::new(&place.path("v.adit")));
    let device = device.map(|device| device.expect("a loop device"));
    let volume = device.as_ref().map_or("v.adit", |device| &device.0);
    let database = Database::install(Some(volume), place, way.run, way.options);
    let mut server = database.start();
    server.sql(LEDGER);
    server.sql("create database sbtest");
    let prepared = sysbench(&server, &["prepare"]).status().expect("sysbench");
    assert!(prepared.success(), "{}", server.said());
    let mut acknowledged = 0;
    for round in 0..way.kills {
        let mut load = sysbench(&server, &["--time=600", "run"])
            .spawn()
            .expect("sysbench");
        let ledgers = [1, 2].map(|name| Ledger::start(&server, round * 2 + name));
        std::thread::sleep(Duration::from_millis(u64::from(500 + round % 7 * 300)));
        server.kill();
        let ledgers = ledgers.map(Ledger::end);
        load.wait().expect("it ends without its server");
        acknowledged += ledgers.iter().map(|ledger| ledger.1).sum::<u64>();
        database.assert_clean();
        server = database.start();
        check_ledgers(&server, &ledgers);
        for table in 1..=4 {
            // Each of its transactions deletes a row and inserts it again.
            let rows = server.sql(&format!("select count(*) from sbtest.sbtest{table}"));
            assert_eq!(rows, "20000\n", "sbtest{table} after kill {round}");
        }
        server.check_tables();
    }
    assert!(acknowledged > 0, "nothing was committed");
    println!("{} kills, {acknowledged} commits noted", way.kills);
    server.stop();
    database.assert_clean();
}

macro_rules! kills {
    ($($name:ident: $device:literal, $run:expr, $options:expr, $kills:literal;)*) => {$(
        #[test]
        #[ignore = "long: cargo xtask programs"]
        fn $name() {
            need!("mariadbd" "mariadb-install-db" "mariadb" "sysbench");
            if $device && !is_root() {
                return skip(adit_skip::LOOP_DEVICES);
            }
            killed(&Way { device: $device, run: $run, options: $options, kills: $kills });
        }
    )*};
}
kills! {
    acknowledged_commits_survive_kills_with_direct_io:
        false, &[], &["--innodb-flush-method=O_DIRECT"], 20;
    acknowledged_commits_survive_kills_with_buffered_io:
        false, &[], &["--innodb-flush-method=fsync"], 20;
    acknowledged_commits_survive_kills_on_a_block_device:
        true, &[], &["--innodb-flush-method=O_DIRECT"], 20;
    acknowledged_commits_survive_kills_without_doublewrite:
        false, &["--atomic-writes", "16K"], &["--innodb-doublewrite=0"], 20;
    acknowledged_commits_survive_kills_without_doublewrite_buffered:
        false, &["--atomic-writes", "16K"], &["--innodb-doublewrite=0", "--innodb-flush-method=fsync"], 20;
    acknowledged_commits_survive_kills_with_native_aio:
        false, &[], &["--innodb-use-native-aio=1"], 20;
    acknowledged_commits_survive_kills_with_native_aio_without_doublewrite:
        false, &["--atomic-writes", "16K"], &["--innodb-use-native-aio=1", "--innodb-doublewrite=0"], 20;
    small_pages_survive_kills_without_doublewrite:
        false, &["--atomic-writes", "4K"], &["--innodb-doublewrite=0", "--innodb-page-size=4K"], 4;
    large_pages_survive_kills_without_doublewrite:
        false, &["--atomic-writes", "64K"], &["--innodb-doublewrite=0", "--innodb-page-size=64K"], 4;
}
