//! Running a program whose output is read line by line, to an end that always comes.
//!
//! | what happens | what becomes of it |
//! |---|---|
//! | the program ends, and so does its output | the answer is how it ended |
//! | it prints nothing for [`Limits::silence`] | it hangs: it is killed with all that it started |
//! | a process that it left holds its output for [`Limits::left`] | failure; that is killed |
//!
//! Only processes that have the other end of the program's output are killed as left ones: they got
//! it from the program.

use std::fs::read_link;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::hanging;
use crate::process::{Outcome, failed};

/// How long is waited for a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// One that prints nothing for so long hangs.
    silence: Duration,
    /// After its end its output may be held for so long, by processes that are about to end, too.
    left: Duration,
}

impl Limits {
    /// Compiling this workspace beside a busy machine takes a third of that silence.
    pub(crate) const USUAL: Limits = Limits {
        silence: Duration::from_secs(20 * 60),
        left: Duration::from_secs(60),
    };

    /// For tests of hangs: a shell prints a line sooner, however busy the machine is.
    #[cfg(test)]
    pub(crate) const SHORT: Limits = Limits {
        silence: Duration::from_secs(15),
        left: Duration::from_secs(15),
    };
}

/// So often it is looked whether the program has ended.
const LOOK_EVERY: Duration = Duration::from_millis(100);

type Lines = Receiver<std::io::Result<Vec<u8>>>;

/// Runs to the end; `each_line` takes standard output, line by line. Returns how the program ended.
/// The error names one that hung, or what it left.
pub(crate) fn run_watching(
    command: &mut Command,
    limits: Limits,
    mut each_line: impl FnMut(&str),
) -> Outcome<ExitStatus> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(command, error))?;
    let output = child.stdout.take().expect("asked for above");
    let pipe = name_of(&output);
    let lines = lines_of(output);
    let (mut heard, mut ended) = (Instant::now(), None);
    loop {
        match lines.recv_timeout(LOOK_EVERY) {
            Ok(line) => {
                heard = Instant::now();
                let line = line.map_err(|error| failed(command, error))?;
                each_line(&String::from_utf8_lossy(&line));
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => (),
        }
        if ended.is_none() && has_ended(&mut child, command)? {
            ended = Some(Instant::now());
        }
        match ended {
            None if heard.elapsed() >= limits.silence => {
                let seconds = limits.silence.as_secs();
                println!("nothing was printed for {seconds} s; this hangs:");
                hanging::kill(child.id());
                let _ = child.wait();
                // What it started may have outlived its parent before.
                let _ = pipe.as_deref().map(kill_holders);
                return Err(failed(command, "it hung and was killed"));
            }
            Some(at) if at.elapsed() >= limits.left => {
                let left = pipe.as_deref().map(kill_holders).unwrap_or_default();
                if !left.is_empty() {
                    drain(&lines, limits.left, &mut each_line);
                    let how = "it ended, but what it left still held its output, and was killed";
                    return Err(failed(command, format!("{how}: {}", left.join(", "))));
                }
                // Nobody that can be seen holds it: its end is still to be read.
                if at.elapsed() >= limits.left + limits.silence {
                    return Err(failed(command, "it ended, but its output never did"));
                }
            }
            _ => (),
        }
    }
    child.wait().map_err(|error| failed(command, error))
}

fn has_ended(child: &mut Child, command: &Command) -> Outcome<bool> {
    let status = child.try_wait().map_err(|error| failed(command, error))?;
    Ok(status.is_some())
}

/// As `/proc` names it for all that have it: `pipe:[1234]`.
fn name_of(output: &ChildStdout) -> Option<String> {
    let link = read_link(format!("/proc/self/fd/{}", output.as_raw_fd()));
    link.ok()?.into_os_string().into_string().ok()
}

/// A thread reads them, until all that write there have closed it.
fn lines_of(output: ChildStdout) -> Lines {
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n') {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Shows and kills the processes that can still write to a pipe; what they are.
fn kill_holders(pipe: &str) -> Vec<String> {
    let writers = hanging::writers(pipe);
    if !writers.is_empty() {
        println!("these still hold the output of a program that has ended:");
    }
    let told = |process: &u32| {
        let command = hanging::command_line(*process);
        format!("process {process} ({command})")
    };
    let told = writers.iter().map(told).collect();
    writers.into_iter().for_each(hanging::kill);
    told
}

/// What is still to be read, but not for long.
fn drain(lines: &Lines, limit: Duration, each_line: &mut impl FnMut(&str)) {
    let begun = Instant::now();
    while let Some(rest) = limit.checked_sub(begun.elapsed()) {
        match lines.recv_timeout(rest) {
            Ok(Ok(line)) => each_line(&String::from_utf8_lossy(&line)),
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(script: &str) -> (Outcome<bool>, Vec<String>) {
        watched_within(Limits::SHORT, script)
    }

    fn watched_within(limits: Limits, script: &str) -> (Outcome<bool>, Vec<String>) {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        let outcome = run_watching(command.args(["-c", script]), limits, |line| {
            lines.push(line.to_owned());
        });
        (outcome.map(|status| status.success()), lines)
    }

    /// Dead, or a zombie: nothing of it runs any more.
    fn is_gone(process: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z "))
    }

    fn wait_until_gone(process: &str) {
        while !is_gone(process) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn all_lines_come_and_the_end_is_known() {
        let usually = |script| watched_within(Limits::USUAL, script);
        let both = vec!["a".into(), "b".into()];
        assert_eq!(usually("echo a; echo b"), (Ok(true), both));
        assert_eq!(usually("echo a; exit 3"), (Ok(false), vec!["a".into()]));
    }

    /// The task waited for 20 minutes, said that a program hangs which had ended, and killed
    /// nobody.
    #[test]
    fn what_a_program_leaves_is_named_and_killed() {
        let (outcome, lines) = watched("sleep 1000 & echo $!; exit 0");
        let complaint = outcome.expect_err("it left something");
        let [process] = &lines[..] else {
            panic!("{lines:?}");
        };
        let named = format!("process {process} (sleep 1000)");
        assert!(
            complaint.contains("still held its output") && complaint.contains(&named),
            "{complaint}"
        );
        wait_until_gone(process);
    }

    /// One that prints all the time is never silent.
    #[test]
    fn what_is_left_and_prints_on_is_killed() {
        let (outcome, lines) = watched("(while :; do echo more; sleep 0.05; done) & echo $!");
        let complaint = outcome.expect_err("it left something");
        assert!(complaint.contains("still held its output"), "{complaint}");
        let process = lines.iter().find(|line| *line != "more");
        wait_until_gone(process.expect("its number"));
    }

    /// A process without the program's output is none of our business.
    #[test]
    fn what_is_left_elsewhere_stays() {
        let script = "sleep 1000 >/dev/null & echo $!";
        let (outcome, lines) = watched_within(Limits::USUAL, script);
        assert_eq!(outcome, Ok(true));
        let process = &lines[0];
        assert!(!is_gone(process));
        hanging::kill(process.parse().expect("a number"));
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_all_that_it_started() {
        // The second one has lost its parent.
        let script = "sleep 1000 & echo $!; (sleep 1000 & echo $!); wait";
        let (outcome, lines) = watched(script);
        let complaint = outcome.expect_err("it hangs");
        assert!(complaint.contains("it hung and was killed"), "{complaint}");
        assert_eq!(lines.len(), 2);
        lines.iter().for_each(|process| wait_until_gone(process));
    }
}
