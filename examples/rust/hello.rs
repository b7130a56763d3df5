//! A volume in an image file: make it, write a file, read it back.
//!
//! `cargo run -p adit --example hello -- /tmp/hello.adit`

use adit::{MkfsOptions, OpenOptions, Volume};

fn main() -> adit::Result<()> {
    let address = std::env::args().nth(1).unwrap_or("mem:64M".to_owned());
    if !address.starts_with("mem:") {
        Volume::mkfs(
            &address,
            MkfsOptions::new().size_bytes(64 << 20).force(true),
        )?;
    }

    let volume = Volume::open(&address)?;
    let file = volume.open_file(
        "/hello",
        OpenOptions::new().read(true).write(true).create(true),
    )?;
    file.write_at(b"Hello, world", 0)?;
    file.sync_all()?; // from here on it survives a power cut

    let mut text = [0; 12];
    file.read_exact_at(&mut text, 0)?;
    println!("{}", String::from_utf8_lossy(&text));

    drop(file);
    volume.close()
}
