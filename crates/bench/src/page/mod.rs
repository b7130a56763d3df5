//! The comparison as files of one folder: JSON, markdown, HTML and pictures.

mod html;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use crate::compare::comparison::Comparison;
use crate::measurement::errors::while_doing;
use crate::pictures;
use crate::report::markdown;

/// Writes it into the folder: `report.json`, `report.md`, `report.html` and the pictures, over
/// older ones of these names and no other file. Returns the files.
pub fn save(comparison: &Comparison, folder: &Path) -> io::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder)
        .map_err(|error| while_doing(format!("create {}", folder.display()), error))?;
    let pictures = pictures::all(comparison)?;
    let mut files = vec![
        ("report.json".to_owned(), comparison.to_json()?),
        ("report.md".to_owned(), markdown::markdown(comparison)),
        ("report.html".to_owned(), html::html(comparison, &pictures)),
    ];
    files.extend(
        pictures
            .into_iter()
            .map(|picture| (format!("{}.svg", picture.name), picture.svg)),
    );
    files
        .into_iter()
        .map(|(name, text)| {
            let path = folder.join(name);
            std::fs::write(&path, text)
                .map_err(|error| while_doing(format!("write {}", path.display()), error))?;
            Ok(path)
        })
        .collect()
}
