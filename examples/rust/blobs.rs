//! Blobs: files without names, for programs that keep their own index.

use adit::{OpenOptions, Volume};

fn main() -> adit::Result<()> {
    let volume = Volume::open("mem:64M")?;
    let mut options = OpenOptions::new();
    options.read(true).write(true);

    let mut index = Vec::new();
    for text in ["one", "two", "three"] {
        let id = volume.create_blob()?;
        let blob = volume.open_blob(id, &options)?;
        blob.write_at(text.as_bytes(), 0)?;
        blob.set_xattr("language", "en")?;
        blob.sync_all()?;
        index.push(id);
    }

    volume.delete_blob(index[1])?;
    for id in volume.blobs() {
        let blob = volume.open_blob(id?, &options)?;
        let mut content = vec![0; blob.len()? as usize];
        blob.read_exact_at(&mut content, 0)?;
        println!("{:?}: {}", blob.id(), String::from_utf8_lossy(&content));
    }
    // An id is never given out again.
    assert!(volume.open_blob(index[1], &options).is_err());
    volume.close()
}
