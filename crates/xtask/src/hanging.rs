//! A program that hangs, or that was left by one: shows where it and its children wait, and kills
//! them.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Prints each thread of a process and of all that it started, and kills them: parents first, so
/// that none starts another one.
pub(crate) fn kill(process: u32) {
    let mut family = vec![process];
    let mut next = 0;
    while let Some(parent) = family.get(next) {
        family.extend(children(*parent));
        next += 1;
    }
    for process in family.iter().rev() {
        describe(*process);
    }
    for process in family {
        // Gone meanwhile, at worst.
        let _ = Command::new("kill")
            .args(["-KILL", &process.to_string()])
            .status();
    }
}

fn children(process: u32) -> Vec<u32> {
    let threads = entries(Path::new(&format!("/proc/{process}/task")));
    let lists = threads.into_iter().map(|thread| {
        let list = format!("/proc/{process}/task/{thread}/children");
        fs::read_to_string(list).unwrap_or_default()
    });
    let numbers = lists.flat_map(|list| {
        let numbers = list.split_whitespace().map(str::parse);
        numbers.flatten().collect::<Vec<u32>>()
    });
    numbers.collect()
}

fn describe(process: u32) {
    let folder = format!("/proc/{process}");
    println!("process {process}: {}", command_line(process));
    for thread in entries(Path::new(&format!("{folder}/task"))) {
        let read = |name: &str| {
            let text = fs::read_to_string(format!("{folder}/task/{thread}/{name}"));
            text.unwrap_or_default().trim_end().to_owned()
        };
        let (name, call) = (read("comm"), read("syscall"));
        println!("  thread {thread} ({name}): system call {call}");
        // Root sees where it is in the kernel.
        for line in read("stack").lines() {
            println!("    {line}");
        }
    }
}

/// The program of a process and its arguments.
pub(crate) fn command_line(process: u32) -> String {
    let command = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    command.trim_end().to_owned()
}

/// The other processes that can write to a pipe (`pipe:[1234]`), as far as this user may see.
pub(crate) fn writers(pipe: &str) -> Vec<u32> {
    let mut processes = entries(Path::new("/proc"));
    processes.retain(|process| *process != std::process::id() && writes_to(*process, pipe));
    processes
}

fn writes_to(process: u32, pipe: &str) -> bool {
    let folder = format!("/proc/{process}");
    let mut descriptors = entries(Path::new(&format!("{folder}/fd"))).into_iter();
    descriptors.any(|number| {
        let target = fs::read_link(format!("{folder}/fd/{number}"));
        let info = fs::read_to_string(format!("{folder}/fdinfo/{number}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        let writes = flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY);
        writes && target.is_ok_and(|target| target.as_os_str() == pipe)
    })
}

fn entries(folder: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let names = entries
        .flatten()
        .map(|entry| entry.file_name().into_string());
    let numbers = names.flatten().map(|name| name.parse());
    numbers.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn a_family_is_found_and_ends() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 1000 & echo ready; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh");
        let mut ready = [0; 6];
        let output = shell.stdout.as_mut().expect("piped");
        std::io::Read::read_exact(output, &mut ready).expect("ready");
        let sleeping = children(shell.id());
        assert_eq!(sleeping.len(), 1);
        kill(shell.id());
        assert!(!shell.wait().expect("ended").success());
        // It dies when it is next scheduled, and is a zombie until its parent waits for it.
        let stat = format!("/proc/{}/stat", sleeping[0]);
        let sleeps = |stat: String| stat.contains("(sleep) ") && !stat.contains(") Z");
        while fs::read_to_string(&stat).is_ok_and(sleeps) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}
