//! Reading without a copy: a buffer is a reference to the cache's own page.

use adit::{OpenOptions, Volume};

fn main() -> adit::Result<()> {
    let volume = Volume::open("mem:64M")?;
    volume.write("/data", vec![1; 1 << 20])?;
    let file = volume.open_file("/data", OpenOptions::new().read(true).write(true))?;

    let mut sum = 0_u64;
    let mut offset = 0;
    while offset < file.len()? {
        // At most what lies in one page; ask again for the rest.
        let piece = file.read_borrowed(usize::MAX, offset)?;
        sum += piece
            .as_slice()
            .iter()
            .map(|&byte| u64::from(byte))
            .sum::<u64>();
        offset += piece.len() as u64;
    }
    println!("sum of {offset} bytes: {sum}");

    // What a buffer holds stays, whatever is written meanwhile.
    let before = file.read_borrowed(4096, 0)?;
    file.write_at(&[2; 4096], 0)?;
    let after = file.read_borrowed(4096, 0)?;
    assert_eq!((before.as_slice()[0], after.as_slice()[0]), (1, 2));

    drop((before, after, file));
    volume.close()
}
