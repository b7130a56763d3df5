//! The rooms of a crate, and which of them a room may use. A test compares these tables with the
//! sources.
//!
//! A room is a module right below `lib.rs` or `main.rs`: a file, or a folder of files with one
//! subject. Its row stands below those of all rooms that it may use, so no two rooms ever use each
//! other.
//!
//! To give a crate rooms, add a table to [`CRATES`] (or fill in an empty one): one row for each
//! module that its `lib.rs` declares, lower rooms first. The test names each path that has no place
//! in the table, with its file and line. An empty table checks nothing.
//!
//! The test follows `mod` declarations from `lib.rs` and reads every `crate::…` and `super::…`
//! path, in `use` and elsewhere. Code under `#[cfg(test)]` may use everything. A name that `lib.rs`
//! re-exports (`crate::Stat`) counts as its room's (`crate::types::Stat`).

/// A room, and the rooms that it may use.
type Room = (&'static str, &'static [&'static str]);

/// Folders of `crates/`, each with its rooms. Lower rooms first.
const CRATES: &[(&str, &[Room])] = &[
    (
        "store",
        &[
            ("format", &[]),
            ("cache", &["format"]),
            ("metadata", &["format"]),
            ("journal", &["format", "cache", "metadata"]),
            ("recovery", &["format", "cache", "metadata", "journal"]),
            ("blob", &["format", "cache", "metadata", "journal"]),
            (
                "state",
                &["format", "cache", "metadata", "journal", "recovery", "blob"],
            ),
            (
                "commit",
                &["format", "cache", "metadata", "journal", "blob", "state"],
            ),
            (
                "data",
                &[
                    "format", "cache", "metadata", "journal", "blob", "state", "commit",
                ],
            ),
            (
                "health",
                &[
                    "format", "cache", "metadata", "recovery", "blob", "state", "commit", "data",
                ],
            ),
            (
                "volume",
                &[
                    "format", "cache", "metadata", "journal", "recovery", "blob", "state",
                    "commit", "data", "health",
                ],
            ),
            ("fuzzing", &["format", "metadata", "data"]),
            ("testing", &["format", "metadata"]),
        ],
    ),
    (
        "fs",
        &[
            ("types", &[]),
            ("names", &["types"]),
            ("inode", &["types", "names"]),
            ("open", &["types"]),
            ("volume", &["types", "names", "inode", "open"]),
            ("attributes", &["types", "inode", "open", "volume"]),
            ("namespace", &["types", "names", "inode", "open", "volume"]),
            ("data", &["types", "inode", "open", "volume", "namespace"]),
            ("locks", &["types", "open", "volume"]),
            ("workers", &["types", "open", "volume", "attributes"]),
            ("inspect", &["types", "names", "inode", "volume"]),
            ("check", &["types", "names", "inode", "volume"]),
            ("repair", &["types", "names", "inode", "volume"]),
            ("fuzzing", &["names"]),
        ],
    ),
    (
        "bench",
        &[
            ("measurement", &[]),
            ("target", &["measurement"]),
            ("jobs", &["measurement", "target"]),
            ("bench", &["measurement", "target", "jobs"]),
            ("compare", &["measurement", "target", "jobs"]),
            ("report", &["measurement", "bench", "compare"]),
            ("pictures", &["measurement", "compare", "report"]),
            ("page", &["measurement", "compare", "report", "pictures"]),
        ],
    ),
    (
        "block",
        &[
            ("buffer", &[]),
            ("pool", &["buffer"]),
            ("request", &["buffer"]),
            ("identity", &[]),
            ("device", &["request", "identity"]),
            ("memory", &["request", "device"]),
            (
                "file",
                &["buffer", "request", "identity", "device", "memory"],
            ),
            (
                "overlay",
                &["buffer", "request", "identity", "device", "memory"],
            ),
            ("fault", &["request", "identity", "device", "memory"]),
            ("address", &["device", "memory", "file"]),
        ],
    ),
    (
        "fuse",
        &[
            ("kernel", &[]),
            ("handles", &[]),
            ("nodes", &[]),
            ("mount_point", &[]),
            ("mounted", &["kernel", "handles", "nodes"]),
            ("attributes", &["kernel", "mounted"]),
            ("listing", &["kernel", "mounted"]),
            ("locks", &["kernel", "mounted"]),
            ("filesystem", &["kernel", "mounted", "attributes", "locks"]),
            ("serving", &["kernel", "mounted", "filesystem"]),
            ("served", &["mount_point", "mounted", "serving"]),
        ],
    ),
    (
        "preload",
        &[
            ("runtime", &[]),
            ("volume", &["runtime"]),
            ("files", &["runtime", "volume"]),
            ("program", &["runtime", "volume", "files"]),
            ("caught", &["runtime"]),
            (
                "calls",
                &["runtime", "volume", "files", "program", "caught"],
            ),
            ("aio", &["runtime", "volume", "files", "calls"]),
            (
                "syscalls",
                &[
                    "runtime", "volume", "files", "program", "caught", "calls", "aio",
                ],
            ),
            (
                "process",
                &[
                    "runtime", "volume", "files", "program", "caught", "calls", "aio", "syscalls",
                ],
            ),
        ],
    ),
    (
        "cli",
        &[
            ("arguments", &[]),
            ("output", &[]),
            ("files", &["arguments", "output"]),
            ("transfer", &["arguments", "output", "files"]),
            ("volumes", &["arguments", "output"]),
            ("processes", &["arguments", "output"]),
        ],
    ),
    (
        "reactor",
        &[
            ("event", &[]),
            ("futex", &[]),
            ("lock", &[]),
            ("sync", &[]),
            ("callback", &["lock"]),
            ("reactor", &["event", "lock"]),
            ("driver", &["futex", "lock", "reactor"]),
            ("handle", &["driver", "reactor"]),
            ("queue", &["event", "lock", "reactor", "driver", "handle"]),
            ("engine", &["reactor", "driver", "handle", "queue"]),
        ],
    ),
    (
        "capi",
        &[
            ("result", &[]),
            ("arguments", &["result"]),
            ("handles", &[]),
            ("types", &["handles"]),
            ("log", &["result", "arguments"]),
            ("volume", &["result", "arguments", "handles", "types"]),
            ("names", &["result", "arguments", "handles", "types"]),
            ("directory", &["result", "arguments", "handles", "types"]),
            ("health", &["result", "arguments", "handles", "types"]),
            ("file", &["result", "arguments", "handles", "types"]),
            ("buffer", &["result", "arguments", "handles", "types"]),
            (
                "attributes",
                &["result", "arguments", "handles", "types", "names", "file"],
            ),
            (
                "blob",
                &[
                    "result",
                    "arguments",
                    "handles",
                    "types",
                    "file",
                    "attributes",
                ],
            ),
            ("operation", &["result", "arguments", "handles", "types"]),
            (
                "queue",
                &["result", "arguments", "handles", "types", "operation"],
            ),
        ],
    ),
    (
        "operations",
        &[
            ("call", &[]),
            ("answer", &["call"]),
            ("kernel", &["call", "answer"]),
            ("library", &["call", "answer"]),
        ],
    ),
    (
        "wire",
        &[
            ("futex", &[]),
            ("message", &[]),
            ("value", &[]),
            ("calls", &["value"]),
            ("handshake", &["value"]),
            ("look", &["value", "calls"]),
            ("slot", &["futex", "message"]),
            ("memory", &["slot"]),
            ("socket", &["value", "handshake"]),
        ],
    ),
    (
        "server",
        &[
            ("begun", &[]),
            ("collected", &[]),
            ("counts", &[]),
            ("crowd", &[]),
            ("door", &[]),
            ("files", &[]),
            ("nodes", &[]),
            ("notices", &[]),
            ("perform", &[]),
            ("resume", &[]),
            ("thread", &[]),
            ("mappings", &["resume"]),
            ("volume", &["nodes", "resume", "mappings"]),
            ("owner", &["files", "resume", "volume"]),
            ("session", &["collected", "counts", "files", "volume"]),
            ("rights", &["session"]),
            ("post", &["counts", "session"]),
            ("balance", &["volume", "session", "post"]),
            (
                "serve",
                &[
                    "begun",
                    "collected",
                    "files",
                    "perform",
                    "resume",
                    "mappings",
                    "volume",
                    "session",
                    "rights",
                ],
            ),
            ("inheritance", &["files", "volume", "session", "serve"]),
            ("looks", &["door", "perform", "session", "rights", "serve"]),
            ("fuzzing", &["looks"]),
            (
                "poller",
                &[
                    "begun", "crowd", "notices", "thread", "volume", "session", "post", "balance",
                    "serve",
                ],
            ),
            (
                "listener",
                &[
                    "door",
                    "nodes",
                    "notices",
                    "resume",
                    "volume",
                    "owner",
                    "session",
                    "balance",
                    "serve",
                    "inheritance",
                    "poller",
                ],
            ),
            (
                "stepped",
                &[
                    "begun",
                    "resume",
                    "volume",
                    "session",
                    "balance",
                    "serve",
                    "inheritance",
                    "poller",
                    "listener",
                ],
            ),
            (
                "server",
                &[
                    "door", "files", "resume", "thread", "volume", "owner", "balance", "serve",
                    "poller", "listener",
                ],
            ),
        ],
    ),
    (
        "adit",
        &[
            ("in_use", &[]),
            ("metadata", &[]),
            ("open_options", &[]),
            ("options", &[]),
            ("pending", &[]),
            ("stderr", &[]),
            ("log", &["stderr"]),
            ("work", &[]),
            ("connection", &["work"]),
            ("identity", &["connection"]),
            (
                "opened",
                &[
                    "in_use",
                    "options",
                    "pending",
                    "work",
                    "connection",
                    "identity",
                ],
            ),
            ("mkfs", &["options", "opened"]),
            (
                "file",
                &["metadata", "pending", "work", "connection", "opened"],
            ),
            ("cursor", &["file"]),
            ("directory", &["file"]),
            (
                "volume",
                &["options", "pending", "connection", "opened", "mkfs", "file"],
            ),
            ("scrub", &["volume"]),
            ("completion_queue", &["pending", "volume"]),
            ("serve", &["opened", "volume"]),
            ("blob", &["open_options", "file", "volume"]),
            ("nodes", &["opened", "file", "volume"]),
            ("shared_mapping", &["opened", "file", "volume"]),
            (
                "collected",
                &["pending", "work", "opened", "file", "volume"],
            ),
            ("repair", &["in_use", "options", "opened", "volume"]),
            (
                "names",
                &[
                    "metadata",
                    "open_options",
                    "pending",
                    "opened",
                    "file",
                    "directory",
                    "volume",
                ],
            ),
            ("attributes", &["opened", "file", "volume", "names"]),
            (
                "inspect",
                &[
                    "metadata",
                    "options",
                    "connection",
                    "identity",
                    "directory",
                    "volume",
                    "names",
                ],
            ),
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::{CRATES, Room};
    use crate::process;
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};

    #[test]
    fn a_room_uses_only_rooms_above_it_in_the_table() {
        for (name, rooms) in CRATES {
            for (rank, (room, uses)) in rooms.iter().enumerate() {
                for used in *uses {
                    let below = rooms[..rank].iter().any(|(lower, _)| lower == used);
                    assert!(below, "{name}: {room} may not use {used}: it is not lower");
                }
            }
        }
    }

    #[test]
    fn the_sources_use_only_what_the_tables_allow() {
        for (name, rooms) in CRATES.iter().filter(|(_, rooms)| !rooms.is_empty()) {
            let source = process::workspace_root()
                .join("crates")
                .join(name)
                .join("src");
            let scan = Scan::of_crate(&source);
            let wrong = violations(rooms, &scan);
            assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
        }
    }

    /// The contradictions to the table, a line each.
    fn violations(rooms: &[Room], scan: &Scan) -> Vec<String> {
        let mut wrong = Vec::new();
        for room in &scan.rooms {
            if !rooms.iter().any(|(name, _)| name == room) {
                wrong.push(format!("`{room}` has no row: add it, lower rooms first"));
            }
        }
        for (room, _) in rooms {
            if !scan.rooms.iter().any(|found| found == room) {
                wrong.push(format!("`{room}` has a row and is no module of the root"));
            }
        }
        for Use { room, used, place } in &scan.uses {
            let allowed = rooms.iter().find(|(name, _)| name == room);
            let allowed = allowed.map_or(&[][..], |(_, uses)| uses);
            if !rooms.iter().any(|(name, _)| name == used) {
                wrong.push(format!("{place}: `crate::{used}` names no room"));
            } else if !allowed.contains(&used.as_str()) {
                wrong.push(format!("{place}: `{room}` may not use `{used}`"));
            }
        }
        wrong
    }

    /// A room uses something of another one.
    #[derive(Debug, PartialEq, Eq)]
    struct Use {
        room: String,
        used: String,
        /// File and line.
        place: String,
    }

    /// The rooms and uses in the sources of a crate.
    #[derive(Default)]
    struct Scan {
        rooms: Vec<String>,
        uses: Vec<Use>,
        /// Names that `lib.rs` takes from a room, and that room.
        exports: BTreeMap<String, String>,
    }

    impl Scan {
        fn of_crate(source: &Path) -> Scan {
            let mut scan = Scan::default();
            let roots = ["lib.rs", "main.rs"].map(|root| source.join(root));
            let root = roots.iter().find(|root| root.is_file());
            scan.file(root.expect("a crate has a root"), source, &[]);
            for found in &mut scan.uses {
                if !scan.rooms.contains(&found.used)
                    && let Some(room) = scan.exports.get(&found.used)
                {
                    found.used.clone_from(room);
                }
            }
            let own = |found: &Use| found.room == found.used;
            scan.uses.retain(|found| !own(found));
            scan
        }

        /// Reads the file of a module, then those of the modules that it declares in `folder`.
        fn file(&mut self, file: &Path, folder: &Path, module: &[String]) {
            let text = std::fs::read_to_string(file)
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            for name in self.text(&text, &file.display().to_string(), module) {
                let module = [module, std::slice::from_ref(&name)].concat();
                let inside = folder.join(&name);
                let candidates: [PathBuf; 2] = [inside.with_extension("rs"), inside.join("mod.rs")];
                let found = candidates.iter().find(|path| path.is_file());
                let found = found.unwrap_or_else(|| panic!("{}: no file", inside.display()));
                self.file(found, &inside, &module);
            }
        }

        /// Reads a module's text; returns the modules that it declares without a body.
        fn text(&mut self, text: &str, file: &str, module: &[String]) -> Vec<String> {
            let tokens = tokens(text);
            let word = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
            let mut declared = Vec::new();
            // The module in which each open brace stands.
            let mut inside = vec![module.to_vec()];
            let mut at = 0;
            while at < tokens.len() {
                let here = inside.last().cloned().unwrap_or_default();
                match word(at) {
                    "#" if ["test)]", "all(test"].iter().any(|of_tests| {
                        let words: String = (1..7).map(|next| word(at + next)).collect();
                        words.starts_with(&format!("[cfg({of_tests}"))
                    }) =>
                    {
                        let rest = tokens[at..].iter();
                        let end = rest.take_while(|token| token.text != "]").count();
                        at = end_of_item(&tokens, at + end + 1);
                        continue;
                    }
                    "use" if here.is_empty() && word(at + 2) == "::" => {
                        let names = tokens[at + 3..].iter().map(|token| &token.text);
                        for name in names.take_while(|name| *name != ";") {
                            self.exports.insert(name.clone(), word(at + 1).to_owned());
                        }
                    }
                    "mod" if word(at + 2) == ";" || word(at + 2) == "{" => {
                        let name = word(at + 1).to_owned();
                        if here.is_empty() {
                            self.rooms.push(name.clone());
                        }
                        if word(at + 2) == ";" {
                            declared.push(name);
                        } else {
                            inside.push([&here[..], &[name]].concat());
                        }
                        at += 3;
                        continue;
                    }
                    "{" => inside.push(here),
                    "}" => drop(inside.pop()),
                    "crate" | "super" if word(at + 1) == "::" => {
                        let mut base = here.clone();
                        if word(at) == "crate" {
                            base.clear();
                        } else {
                            base.pop();
                            while word(at + 2) == "super" && word(at + 3) == "::" {
                                base.pop();
                                at += 2;
                            }
                        }
                        // A path to one thing, or to several in braces.
                        let first = at + 2;
                        let names = match word(first) {
                            "{" => heads(&tokens, first),
                            _ => vec![first],
                        };
                        for name in names {
                            // A macro lies at the root, whichever room makes it.
                            let is_macro = word(name + 1) == "!";
                            let used = base.first().map_or(word(name), String::as_str);
                            if let Some(room) = here.first()
                                && !is_macro
                                && room != used
                            {
                                self.uses.push(Use {
                                    room: room.clone(),
                                    used: used.to_owned(),
                                    place: format!("{file}:{}", tokens[name].line),
                                });
                            }
                        }
                        at += 1;
                    }
                    _ => {}
                }
                at += 1;
            }
            declared
        }
    }

    struct Token {
        text: String,
        line: usize,
    }

    /// Words, `::`, and single characters; without comments, and with strings left out.
    fn tokens(text: &str) -> Vec<Token> {
        let bytes = text.as_bytes();
        let is_word = |at: usize| {
            bytes
                .get(at)
                .is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
        };
        let mut tokens = Vec::new();
        let (mut at, mut line) = (0, 1);
        while at < bytes.len() {
            let start = at;
            let rest = &bytes[at..];
            let keep = match rest[0] {
                _ if rest.starts_with(b"//") => {
                    at += rest.iter().take_while(|byte| **byte != b'\n').count();
                    false
                }
                _ if rest.starts_with(b"/*") => {
                    let end = rest.windows(2).position(|two| two == b"*/");
                    at += end.map_or(rest.len(), |end| end + 2);
                    false
                }
                b'r' if (at == 0 || !is_word(at - 1))
                    && (rest.starts_with(b"r\"") || rest.starts_with(b"r#\"")) =>
                {
                    let end: &[u8] = if rest[1] == b'#' { b"\"#" } else { b"\"" };
                    let body = 1 + end.len();
                    let found = rest[body..].windows(end.len()).position(|part| part == end);
                    at += found.map_or(rest.len(), |found| body + found + end.len());
                    false
                }
                b'"' => {
                    at += 1;
                    while at < bytes.len() && bytes[at] != b'"' {
                        at += if bytes[at] == b'\\' { 2 } else { 1 };
                    }
                    at += 1;
                    false
                }
                // A character; otherwise it is a lifetime.
                b'\'' if rest.get(1) == Some(&b'\\') => {
                    let end = rest[2..].iter().skip(1).position(|byte| *byte == b'\'');
                    at += end.map_or(rest.len(), |end| end + 4);
                    false
                }
                b'\'' if rest.get(2) == Some(&b'\'') => {
                    at += 3;
                    false
                }
                b':' if rest.starts_with(b"::") => {
                    at += 2;
                    true
                }
                byte if byte.is_ascii_whitespace() => {
                    at += 1;
                    false
                }
                _ if is_word(at) => {
                    while is_word(at) {
                        at += 1;
                    }
                    true
                }
                _ => {
                    at += 1;
                    rest[0].is_ascii()
                }
            };
            let end = at.min(bytes.len());
            if keep {
                tokens.push(Token {
                    text: String::from_utf8_lossy(&bytes[start..end]).into_owned(),
                    line,
                });
            }
            line += bytes[start..end]
                .iter()
                .filter(|byte| **byte == b'\n')
                .count();
        }
        tokens
    }

    /// The first token behind an item: behind its `;`, or behind its body.
    fn end_of_item(tokens: &[Token], from: usize) -> usize {
        let mut depth = 0;
        for (at, token) in tokens.iter().enumerate().skip(from) {
            match token.text.as_str() {
                "{" | "(" | "[" => depth += 1,
                ")" | "]" => depth -= 1,
                "}" => {
                    depth -= 1;
                    if depth == 0 {
                        return at + 1;
                    }
                }
                ";" if depth == 0 => return at + 1,
                _ => {}
            }
        }
        tokens.len()
    }

    /// The first token of each path in the braces that open at `open`.
    fn heads(tokens: &[Token], open: usize) -> Vec<usize> {
        let (mut heads, mut depth, mut fresh) = (Vec::new(), 0, false);
        for (at, token) in tokens.iter().enumerate().skip(open) {
            match token.text.as_str() {
                "{" => {
                    depth += 1;
                    fresh = depth == 1;
                }
                "}" if depth == 1 => return heads,
                "}" => depth -= 1,
                "," => fresh = depth == 1,
                _ if fresh => {
                    heads.push(at);
                    fresh = false;
                }
                _ => {}
            }
        }
        heads
    }

    fn uses_in(module: &[&str], text: &str) -> Vec<String> {
        let module: Vec<String> = module.iter().map(|name| (*name).to_owned()).collect();
        let mut scan = Scan::default();
        scan.text(text, "file", &module);
        let uses = scan.uses.into_iter();
        uses.map(|found| found.used).collect()
    }

    #[test]
    fn paths_are_found_in_imports_and_in_code() {
        assert_eq!(uses_in(&["a"], "use crate::b::{C, D};"), ["b"]);
        assert_eq!(
            uses_in(&["a"], "use crate::{\n b::{C, D}, c, a::E,\n};"),
            ["b", "c"]
        );
        assert_eq!(
            uses_in(&["a"], "fn f() { crate::b::f(crate::C) }"),
            ["b", "C"]
        );
        assert!(uses_in(&["a"], "fn f() { crate::b!() }").is_empty());
    }

    #[test]
    fn a_path_upwards_is_followed_from_its_module() {
        assert_eq!(uses_in(&["a"], "use super::b;"), ["b"]);
        assert!(uses_in(&["a", "part"], "use super::b;").is_empty());
        assert_eq!(uses_in(&["a", "part"], "use super::super::b;"), ["b"]);
        assert!(uses_in(&["a"], "mod inner { use super::b; }").is_empty());
        assert_eq!(
            uses_in(&["a"], "mod inner { fn f() {} } use super::b;"),
            ["b"]
        );
    }

    #[test]
    fn tests_comments_and_strings_may_name_everything() {
        let text = r##"
            //! crate::b
            /* crate::b */
            const A: &str = "crate::b { \" '";
            const B: char = '"';
            const C: &str = r#"crate::b " "#;
            const D: [char; 2] = ['\'', '{'];
            fn f<'a>(text: &'a str) {}
            #[cfg(test)]
            use crate::b;
            #[cfg(test)]
            mod tests {
                use crate::b;
            }
            #[cfg(all(test, loom))]
            mod models;
            use crate::c;
        "##;
        assert_eq!(uses_in(&["a"], text), ["c"]);
    }

    #[test]
    fn a_table_that_does_not_fit_is_told_with_the_place() {
        let mut scan = Scan::default();
        scan.text("mod low; mod high; mod new;", "lib.rs", &[]);
        scan.text("use crate::high::A;", "low.rs", &["low".to_owned()]);
        let rooms: &[Room] = &[("low", &[]), ("high", &["low"]), ("gone", &[])];
        assert_eq!(
            violations(rooms, &scan),
            [
                "`new` has no row: add it, lower rooms first",
                "`gone` has a row and is no module of the root",
                "low.rs:1: `low` may not use `high`",
            ]
        );
    }
}
