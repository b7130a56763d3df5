//! Documents that are found: a link leads to a file and to a heading of it, a path below `docs/` in
//! a source or a message names a file, and each folder's map names every document in it.
//!
//! Not checked: addresses of the Web, and links in the comments that rustdoc checks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use crate::process;

/// Folders of the workspace with documents, or sources that name them.
const FOLDERS: [&str; 6] = ["docs", "crates", "plugins", "contrib", "examples", "fuzz"];

/// What no developer writes.
const NOT_OURS: [&str; 3] = ["target", "corpus", "artifacts"];

/// Kinds of files that may name a document.
const SOURCES: [&str; 10] = [
    "rs", "c", "h", "hpp", "cc", "md", "toml", "service", "sh", "py",
];

/// The maps: each names all documents below its folder that no map of a lower folder names.
const MAPS: [&str; 3] = [
    "docs/README.md",
    "docs/decisions/README.md",
    "docs/reference/benchmarks/README.md",
];

/// All texts of the workspace, by path from its root.
fn texts() -> BTreeMap<PathBuf, String> {
    let root = process::workspace_root();
    let mut texts = BTreeMap::new();
    let mut add = |path: &Path| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        if extension.is_some_and(|extension| SOURCES.contains(&extension))
            && let Ok(text) = std::fs::read_to_string(path)
        {
            let path = path.strip_prefix(&root).expect("below the root");
            texts.insert(path.to_owned(), text);
        }
    };
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|name| root.join(name)).collect();
    for entry in entries(&root) {
        add(&entry);
    }
    while let Some(folder) = folders.pop() {
        for entry in entries(&folder) {
            let name = entry.file_name().unwrap_or_default();
            if !entry.is_dir() {
                add(&entry);
            } else if !NOT_OURS.iter().any(|other| name == *other) {
                folders.push(entry);
            }
        }
    }
    texts
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder of the workspace");
    entries.flatten().map(|entry| entry.path()).collect()
}

fn is_document(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

/// The lines of a document that are not in a fenced block.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_fenced = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fenced && !is_fence
    })
}

/// The targets of a document's links, without addresses of the Web.
fn links(text: &str) -> Vec<&str> {
    let mut links = Vec::new();
    for line in prose(text) {
        for (number, piece) in line.split("](").enumerate() {
            let Some((target, _)) = piece.split_once(')') else {
                continue;
            };
            if number > 0 && !target.contains("://") {
                links.push(target);
            }
        }
    }
    links
}

/// What links may name in a document: its headings, as GitHub makes them (of equal ones the second
/// ends in `-1`), and the places with an `id`.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for line in prose(text).filter(|line| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim();
        let kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
        let letters = without_targets(heading).to_lowercase();
        let anchor: String = letters.chars().filter(kept).collect();
        let anchor = anchor.replace(' ', "-");
        let before = seen.entry(anchor.clone()).or_default();
        anchors.insert(match *before {
            0 => anchor,
            number => format!("{anchor}-{number}"),
        });
        *before += 1;
    }
    let places = prose(text).flat_map(|line| line.split("<a id=\"").skip(1));
    anchors.extend(places.filter_map(|place| place.split('"').next().map(str::to_owned)));
    anchors
}

/// A heading's text, with the labels of its links and not their targets.
fn without_targets(heading: &str) -> String {
    let mut pieces = heading.split("](");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        text.push_str(piece.split_once(')').map_or("", |(_, rest)| rest));
    }
    text
}

/// `folder`/`link` without `.` and `..`.
fn joined(folder: &Path, link: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in folder.join(link).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => (),
            part => path.push(part),
        }
    }
    path
}

/// The links of documents that lead nowhere.
fn broken_links(texts: &BTreeMap<PathBuf, String>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, text) in texts.iter().filter(|(path, _)| is_document(path)) {
        let folder = path.parent().unwrap_or(Path::new(""));
        for link in links(text) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                _ => joined(folder, file),
            };
            let is_there = match texts.get(&target).filter(|_| is_document(&target)) {
                Some(_) if heading.is_empty() => true,
                Some(document) => anchors(document).contains(heading),
                None => exists(&target),
            };
            if !is_there {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    broken
}

/// The paths below `docs/` that a text names, without the dot at the end of a sentence.
fn named_paths(text: &str) -> impl Iterator<Item = &str> {
    let in_path = |letter: char| letter.is_ascii_alphanumeric() || "-_./*".contains(letter);
    text.match_indices("docs/").filter_map(move |(at, _)| {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|letter| letter.is_alphanumeric() || "-_.".contains(letter)) {
            return None;
        }
        let path = text[at..].split(|letter| !in_path(letter)).next()?;
        Some(path.trim_end_matches(['.', '/']))
    })
}

#[cfg(test)]
mod tests {
    use super::{MAPS, anchors, broken_links, is_document, joined, links, named_paths, texts};
    use crate::process;
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::{Path, PathBuf};

    #[test]
    fn every_link_leads_to_a_file_and_a_heading() {
        let root = process::workspace_root();
        let broken = broken_links(&texts(), |path| root.join(path).exists());
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }

    #[test]
    fn every_path_of_a_document_in_a_source_is_there() {
        let root = process::workspace_root();
        // A record may be named by its number, and a picture by a star.
        let is_there = |path: &str| {
            let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
            let begin = name.split('*').next().unwrap_or_default();
            let is_whole = !name.contains('*') && !name.bytes().all(|byte| byte.is_ascii_digit());
            match std::fs::read_dir(root.join(folder)) {
                Ok(mut entries) => entries.any(|entry| {
                    let entry = entry.expect("readable").file_name();
                    let entry = entry.to_string_lossy();
                    entry == name || !is_whole && entry.starts_with(begin)
                }),
                Err(_) => false,
            }
        };
        let mut missing = BTreeSet::new();
        for (file, text) in texts() {
            // These paths are examples of this test.
            if file.ends_with("xtask/src/documents.rs") {
                continue;
            }
            let named = named_paths(&text).filter(|path| !is_there(path));
            missing.extend(named.map(|path| format!("{}: {path}", file.display())));
        }
        assert!(missing.is_empty(), "{missing:#?}");
    }

    #[test]
    fn the_maps_name_every_document() {
        let texts = texts();
        let mut named = BTreeSet::new();
        for map in MAPS {
            let folder = Path::new(map).parent().expect("in a folder");
            let links = links(&texts[Path::new(map)]).into_iter();
            named.extend(links.map(|link| joined(folder, link.split('#').next().unwrap_or(link))));
            named.insert(map.into());
        }
        let is_ours = |path: &&PathBuf| is_document(path) && path.starts_with("docs");
        let forgotten: Vec<_> = texts.keys().filter(is_ours).collect();
        let forgotten = forgotten.into_iter().filter(|path| !named.contains(*path));
        assert_eq!(forgotten.collect::<Vec<_>>(), Vec::<&PathBuf>::new());
    }

    #[test]
    fn links_to_missing_files_and_headings_are_found() {
        let texts: BTreeMap<PathBuf, String> = [
            (
                "a.md",
                "# One `two`, three\n[1](docs/b.md) [2](docs/b.md#part) [3](#one-two-three)\n\
                 [4](docs/c.md) [5](docs/b.md#other) [6](#four) [7](https://example.org)\n\
                 ```\n[8](docs/c.md)\n```\n",
            ),
            (
                "docs/b.md",
                "# Part\n## Part\n[1](../a.md) [2](b.md#part-1) [3](a.md)\n",
            ),
        ]
        .map(|(path, text)| (path.into(), text.into()))
        .into();
        let broken = broken_links(&texts, |_| false);
        let expected = [
            "a.md: docs/c.md",
            "a.md: docs/b.md#other",
            "a.md: #four",
            "docs/b.md: a.md",
        ];
        assert_eq!(broken, expected);
        let text = "//! docs/a.md. See `docs/decisions/0029`, crate_docs/b, x-docs/c.";
        let named: Vec<_> = named_paths(text).collect();
        assert_eq!(named, ["docs/a.md", "docs/decisions/0029"]);
        let found = anchors("## A [link](b.md) – in it\n| <a id=\"row\"></a>of a table |\n");
        assert_eq!(found, ["a-link--in-it", "row"].map(str::to_owned).into());
    }
}
