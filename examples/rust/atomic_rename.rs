//! Replacing a file so that every reader, and every crash, sees the old content or the new one.

use adit::{OpenOptions, Volume};

fn replace(volume: &Volume, path: &str, content: &[u8]) -> adit::Result<()> {
    let fresh = format!("{path}.new");
    volume.write(&fresh, content)?;
    // Renaming over a file writes the new content home first, so no sync of the file is needed.
    volume.rename(&fresh, path)?;
    // Atomic it is already; this makes it durable.
    volume
        .open_file("/", OpenOptions::new().read(true).directory(true))?
        .sync_all()
}

fn main() -> adit::Result<()> {
    let volume = Volume::open("mem:64M")?;
    replace(&volume, "/settings", b"colour = red")?;
    replace(&volume, "/settings", b"colour = blue")?;
    println!("{}", String::from_utf8_lossy(&volume.read("/settings")?));
    assert!(!volume.exists("/settings.new")?);
    volume.close()
}
