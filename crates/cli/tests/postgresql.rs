//! PostgreSQL, as Debian has it, on a volume in a server: `adit run unix:SOCKET -- postgres`; and on
//! one that its processes share among themselves, `adit run IMAGE -- postgres`.
//!
//! It forks a process for each connection. Each insert that was acknowledged must be there after a
//! kill of one of its processes, of the postmaster, of the server that has the volume, or of both.
//! More kills: `ADIT_DEATHS=50`.

#[macro_use]
mod support;

use adit_skip::skip;
use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use support::servers::{FOR_ALL, Served, Watchdog, deaths, moment, until};
use support::{Place, is_root};

/// Where Debian has the programs of a server.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let programs = versions.flatten().map(|of| of.path().join("bin"));
    programs.filter(|of| of.join("postgres").is_file()).max()
}

/// It refuses to be root.
fn user() -> Option<(u32, u32)> {
    if !is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").expect("read");
    let mut lines = users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    let user = lines.find(|line| line[0] == "postgres").expect("a user");
    Some((
        user[2].parse().expect("a number"),
        user[3].parse().expect("a number"),
    ))
}

/// A cluster on a volume.
struct Cluster {
    place: Place,
    programs: PathBuf,
    /// Short paths, which the server's user may use: the sockets, and the command.
    shared: tempfile::TempDir,
    /// The volume is in a server, not in the database's own processes.
    is_served: bool,
    served: Option<Served>,
    postmaster: Option<Child>,
}

impl Cluster {
    fn new(programs: PathBuf, is_served: bool) -> Cluster {
        let shared = tempfile::tempdir().expect("a directory");
        let open = Permissions::from_mode(0o777);
        std::fs::set_permissions(shared.path(), open).expect("set");
        let command = Path::new(env!("CARGO_BIN_EXE_adit"));
        for name in ["adit", "libadit_preload.so"] {
            support::copy_program(&command.with_file_name(name), &shared.path().join(name));
        }
        let place = Place::new();
        let image = match is_served {
            true => place.path("v.adit"),
            false => shared.path().join("v.adit"),
        };
        place.ok(&["mkfs", image.to_str().expect("text"), "--size", "512M"]);
        let mut cluster = Cluster {
            place,
            programs,
            shared,
            is_served,
            served: None,
            postmaster: None,
        };
        if is_served {
            cluster.serve();
        }
        let address = cluster.address();
        let (uid, gid) = user().unwrap_or_else(|| {
            let own = std::fs::metadata("/proc/self").expect("there");
            use std::os::unix::fs::MetadataExt;
            (own.uid(), own.gid())
        });
        let script = format!("mkdir -m 700 /adit/pg && chown {uid}:{gid} /adit/pg");
        (cluster.place).ok(&["run", &address, "--", "sh", "-c", &script]);
        if !is_served {
            std::os::unix::fs::chown(&image, Some(uid), Some(gid)).expect("owned");
        }
        let made = cluster
            .run("initdb")
            .args(["-D", "/adit/pg/data", "-U", "postgres", "-A", "trust", "-N"])
            .output()
            .expect("it runs");
        let errors = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "initdb: {errors}");
        assert_eq!(errors.find("adit: "), None, "{errors}");
        cluster
    }

    fn address(&self) -> String {
        match self.is_served {
            true => format!("unix:{}", self.shared.path().join("s").display()),
            false => self.shared.path().join("v.adit").display().to_string(),
        }
    }

    fn serve(&mut self) {
        let socket = self.shared.path().join("s");
        let socket = socket.to_str().expect("text");
        let arguments = ["serve", "v.adit", "--socket", socket, "--mode", "666"];
        let arguments = [&arguments[..], &FOR_ALL].concat();
        self.served = Some(Served::start_command(self.place.command(&arguments)));
    }

    /// A program of PostgreSQL's, with the volume.
    fn run(&self, program: &str) -> Command {
        let mut command = Command::new(self.shared.path().join("adit"));
        command.args(["run", &self.address(), "--reconnect", "60", "--"]);
        command.arg(self.programs.join(program)).current_dir("/");
        if let Some((uid, gid)) = user() {
            command.uid(uid).gid(gid);
        }
        command
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.place.path("log")).unwrap_or_default()
    }

    /// Starts it; again, while processes of the last one are there.
    fn start(&mut self) {
        until("the database is there", || {
            if self.postmaster.is_none() {
                let mut options = File::options();
                options.create(true).append(true);
                let log = options.open(self.place.path("log")).expect("a log");
                let mut command = self.run("postgres");
                command
                    .args(["-D", "/adit/pg/data", "-c", "listen_addresses="])
                    .args(["-c", "shared_buffers=16MB", "-c", "max_wal_size=64MB"])
                    .arg("-c")
                    .arg(format!(
                        "unix_socket_directories={}",
                        self.shared.path().display()
                    ))
                    .stdin(Stdio::null())
                    .stdout(log.try_clone().expect("a descriptor"))
                    .stderr(log);
                self.postmaster = Some(command.spawn().expect("it runs"));
            }
            let postmaster = self.postmaster.as_mut().expect("started");
            if postmaster.try_wait().expect("a child").is_some() {
                self.postmaster = None;
            }
            self.client(&["-c", "select 1"]).0
        });
    }

    fn client_command(&self) -> Command {
        let mut command = Command::new(self.programs.join("psql"));
        command
            .args([
                "-X",
                "-A",
                "-t",
                "-q",
                "-v",
                "ON_ERROR_STOP=1",
                "-U",
                "postgres",
                "-h",
            ])
            .arg(self.shared.path());
        command
    }

    fn client(&self, arguments: &[&str]) -> (bool, String) {
        let output = self.client_command().args(arguments).output();
        let output = output.expect("a client");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        (output.status.success(), said)
    }

    fn sql(&self, statement: &str) -> String {
        let (done, said) = self.client(&["-c", statement]);
        assert!(done, "{statement}: {said}\n{}", self.said());
        said.trim().to_owned()
    }

    /// How many transactions of pgbench's clients are there.
    fn transfers(&self) -> u64 {
        let count = self.sql("select count(*) from pgbench_history");
        count.parse().expect("a number")
    }

    fn pgbench_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join("pgbench"));
        command
            .args(["-U", "postgres", "-h"])
            .arg(self.shared.path())
            .args(arguments)
            .arg("postgres");
        command
    }

    fn pgbench(&self, arguments: &[&str]) {
        let done = self.pgbench_command(arguments).output().expect("it runs");
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "pgbench: {errors}\n{}", self.said());
    }

    fn kill_postmaster(&mut self) {
        if let Some(mut postmaster) = self.postmaster.take() {
            let _ = postmaster.kill();
            let _ = postmaster.wait();
        }
    }

    fn kill_server(&mut self) {
        let served = self.served.take().expect("it serves");
        served.signal(rustix::process::Signal::KILL);
        served.end();
        self.serve();
    }

    /// Kills a process that works for a client.
    fn kill_backend(&self) {
        let pid = self.sql("select pid from pg_stat_activity where query like 'insert%' limit 1");
        let number = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
        let number = number.unwrap_or_else(|| panic!("no process works for a client: {pid:?}"));
        rustix::process::kill_process(number, rustix::process::Signal::KILL).expect("killed");
    }
}

impl Drop for Cluster {
    /// A test that fails leaves no server.
    fn drop(&mut self) {
        self.kill_postmaster();
    }
}

/// Clients of pgbench, each of whose transactions adds one number to four tables.
struct Transfers(Child);

impl Transfers {
    fn start(cluster: &Cluster) -> Transfers {
        let mut command = cluster.pgbench_command(&["-c", "2", "-T", "600", "-n"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Transfers(command.spawn().expect("it runs"))
    }

    /// The clients are killed. No transaction was done by half.
    fn check(mut self, cluster: &Cluster) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let sums = "select (select sum(abalance) from pgbench_accounts),
             (select sum(bbalance) from pgbench_branches),
             (select sum(tbalance) from pgbench_tellers),
             (select sum(delta) from pgbench_history)";
        let sums = cluster.sql(sums);
        let mut each = sums.split('|');
        let first = each.next();
        assert!(
            each.all(|sum| Some(sum) == first),
            "{sums}\n{}",
            cluster.said()
        );
    }
}

/// A client that commits one row after the other, and counts what was acknowledged.
struct Ledger {
    client: Child,
    name: u64,
    has_begun: Arc<AtomicBool>,
    acknowledged: JoinHandle<u64>,
}

impl Ledger {
    fn start(cluster: &Cluster, name: u64) -> Ledger {
        let mut client = cluster
            .client_command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a client");
        let mut to = client.stdin.take().expect("piped");
        let from = BufReader::new(client.stdout.take().expect("piped"));
        let has_begun = Arc::new(AtomicBool::new(false));
        let begun = has_begun.clone();
        let acknowledged = std::thread::spawn(move || {
            let mut lines = from.lines().map_while(Result::ok);
            let mut acknowledged = 0;
            loop {
                let next = acknowledged + 1;
                let line = format!(
                    "insert into ledger values ({name}, {next}, repeat('{next}', 100)) returning number;\n"
                );
                if to.write_all(line.as_bytes()).is_err() {
                    return acknowledged;
                }
                match lines.next() {
                    Some(line) if line == next.to_string() => acknowledged = next,
                    _ => return acknowledged,
                }
                begun.store(true, Ordering::Relaxed);
            }
        });
        Ledger {
            client,
            name,
            has_begun,
            acknowledged,
        }
    }

    /// Has its first row been acknowledged?
    fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    fn has_ended(&self) -> bool {
        self.acknowledged.is_finished()
    }

    /// Each acknowledged row is there; beyond them at most the one that was under way.
    fn check(mut self, cluster: &Cluster) -> u64 {
        let _ = self.client.kill();
        let _ = self.client.wait();
        let acknowledged = self.acknowledged.join().expect("no panic");
        // What its process was doing ends after it.
        let running = format!(
            "select count(*) from pg_stat_activity where query like 'insert into ledger values ({},%'",
            self.name
        );
        until("its connection has ended", || cluster.sql(&running) == "0");
        let found = cluster.sql(&format!(
            "select count(*), coalesce(max(number), 0),
                 coalesce(sum((padding = repeat(number::text, 100))::int), 0)
             from ledger where client = {}",
            self.name
        ));
        let found: Vec<u64> = found
            .split('|')
            .map(|of| of.parse().expect("a number"))
            .collect();
        let [count, newest, whole] = found[..] else {
            panic!("{found:?}")
        };
        assert!(
            count == newest && count == whole && (0..=1).contains(&(count - acknowledged)),
            "{acknowledged} inserts were acknowledged, {count} rows are there, the newest is \
             {newest}, {whole} are whole\n{}",
            cluster.said()
        );
        acknowledged
    }
}

#[test]
fn a_cluster_is_installed_killed_and_recovered_on_a_volume_in_a_server() {
    need!();
    let Some(programs) = programs() else {
        return skip("PostgreSQL is not installed (apt install postgresql-15)");
    };
    let _watchdog = Watchdog::new();
    let mut cluster = Cluster::new(programs, true);
    cluster.start();
    cluster.sql(
        "create table ledger (client int, number int, padding text, primary key (client, number))",
    );
    cluster.pgbench(&["-i", "-q"]);
    cluster.pgbench(&["-c", "4", "-t", "25", "-n"]);
    let mut clients = 0;
    for round in 0..deaths(5) {
        let ledgers = [(); 2].map(|()| {
            clients += 1;
            Ledger::start(&cluster, clients)
        });
        let before = cluster.transfers();
        let mut transfers = Transfers::start(&cluster);
        // On a busy machine a client takes its time to connect; pgbench does so three times.
        until("the clients have begun", || {
            ledgers.iter().all(Ledger::has_begun) && cluster.transfers() > before
        });
        std::thread::sleep(Duration::from_millis(100) + moment(round, 300_000));
        let goes_on = match round % 5 {
            0 => {
                cluster.kill_server();
                true
            }
            1 => {
                cluster.kill_backend();
                false
            }
            2 => {
                cluster.kill_postmaster();
                false
            }
            3 => {
                cluster.kill_postmaster();
                cluster.kill_server();
                false
            }
            _ => {
                // Both, the other way round.
                let served = cluster.served.take().expect("it serves");
                served.signal(rustix::process::Signal::KILL);
                cluster.kill_postmaster();
                served.end();
                cluster.serve();
                false
            }
        };
        if goes_on {
            std::thread::sleep(Duration::from_millis(200));
            let ended = transfers.0.try_wait().expect("a child").is_some();
            assert!(
                !ended && !ledgers.iter().any(Ledger::has_ended),
                "clients go on with the next server\n{}",
                cluster.said()
            );
        } else {
            until("the clients have ended", || {
                ledgers.iter().all(Ledger::has_ended)
            });
        }
        cluster.start();
        let acknowledged: u64 = ledgers.map(|ledger| ledger.check(&cluster)).iter().sum();
        assert!(acknowledged > 0, "nothing was done\n{}", cluster.said());
        transfers.check(&cluster);
    }
    let before = cluster.transfers();
    assert!(before > 100, "{before} transfers");
    cluster.pgbench(&["-c", "4", "-t", "25", "-n"]);
    assert_eq!(cluster.transfers(), before + 100);
    // In order.
    let mut postmaster = cluster.postmaster.take().expect("it runs");
    let pid = rustix::process::Pid::from_child(&postmaster);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signalled");
    assert!(
        postmaster.wait().expect("ended").success(),
        "{}",
        cluster.said()
    );
    let said = cluster.said();
    assert_eq!(
        said.lines().find(|line| line.contains("PANIC")),
        None,
        "{said}"
    );
    let served = cluster.served.take().expect("it serves");
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().0.success());
    cluster.place.ok(&["check", "v.adit"]);
}

/// The postmaster has the volume; without it the processes that work for clients go on with a server
/// until they notice.
#[test]
fn a_cluster_is_installed_killed_and_recovered_on_an_image_alone() {
    need!();
    let Some(programs) = programs() else {
        return skip("PostgreSQL is not installed (apt install postgresql-15)");
    };
    let _watchdog = Watchdog::new();
    let mut cluster = Cluster::new(programs, false);
    cluster.start();
    cluster.sql(
        "create table ledger (client int, number int, padding text, primary key (client, number))",
    );
    cluster.pgbench(&["-i", "-q"]);
    for client in 0..3 {
        let ledger = Ledger::start(&cluster, client);
        until("the client has begun", || ledger.has_begun());
        std::thread::sleep(moment(client, 300_000));
        match client {
            0 => cluster.kill_backend(),
            _ => cluster.kill_postmaster(),
        }
        until("the client has ended", || ledger.has_ended());
        cluster.start();
        ledger.check(&cluster);
        cluster.pgbench(&["-c", "4", "-t", "25", "-n"]);
    }
    let postmaster = cluster.postmaster.as_mut().expect("it runs");
    let pid = rustix::process::Pid::from_child(postmaster);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("told");
    assert!(postmaster.wait().expect("ended").success());
    cluster.postmaster = None;
    let address = cluster.address();
    until("nobody has the volume", || {
        cluster.place.run(&["check", &address]).status.success()
    });
}
