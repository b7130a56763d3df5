// What Node does with files, in a directory; `UV_USE_IO_URING=1` has libuv use a ring if it gets one.
// node past.js DIRECTORY OTHER
const fs = require('fs');
const path = require('path');
const [here, there] = process.argv.slice(2);
const at = (name) => path.join(here, name);
const say = (what, ...values) => console.log(what, ...values.map((value) => JSON.stringify(value)));

async function main() {
  const { promises } = fs;
  const bytes = Buffer.alloc(300000, 'a line of text\n');
  await promises.writeFile(at('a'), bytes);
  say('read', (await promises.readFile(at('a'))).equals(bytes));
  await promises.appendFile(at('a'), 'end');
  say('size', (await promises.stat(at('a'))).size);
  await promises.copyFile(at('a'), at('b'));
  fs.copyFileSync(at('b'), path.join(there, 'c'));
  fs.copyFileSync(path.join(there, 'c'), at('d'));
  await promises.copyFile(at('d'), path.join(there, 'e'));
  await promises.copyFile(path.join(there, 'e'), at('f'));
  say('copied', fs.readFileSync(at('f')).equals(fs.readFileSync(at('a'))));
  await promises.copyFile(at('a'), at('b'), fs.constants.COPYFILE_EXCL).catch((error) => say('there', error.code));
  await promises.rename(at('b'), at('renamed'));
  await promises.mkdir(at('directory/below'), { recursive: true });
  await promises.symlink('../f', at('directory/link'));
  say('link', await promises.readlink(at('directory/link')), fs.realpathSync(at('directory/link')) === at('f'));
  say('names', (await promises.readdir(here, { recursive: true })).sort());
  const kinds = await promises.readdir(here, { withFileTypes: true });
  say('kinds', kinds.filter((entry) => entry.isDirectory()).map((entry) => entry.name));
  const file = await promises.open(at('handle'), 'w+');
  await file.writev([Buffer.from('one'), Buffer.from('two')]);
  await file.write('THREE', 3);
  await file.datasync();
  await file.truncate(7);
  await file.sync();
  const read = await file.read(Buffer.alloc(20), 0, 20, 0);
  say('handle', read.bytesRead, read.buffer.toString('latin1', 0, read.bytesRead));
  await file.chmod(0o640);
  await file.utimes(1, 2);
  const known = await file.stat();
  say('mode', known.mode & 0o777, known.mtimeMs);
  await file.close();
  await new Promise((done, failed) =>
    fs.createReadStream(at('a')).pipe(fs.createWriteStream(at('streamed'))).on('finish', done).on('error', failed));
  say('streamed', fs.statSync(at('streamed')).size);
  const seen = await new Promise((done) => {
    fs.watchFile(at('handle'), { interval: 20 }, (now, before) => done([before.size, now.size]));
    setTimeout(() => fs.appendFileSync(at('handle'), 'watched'), 100);
  });
  fs.unwatchFile(at('handle'));
  say('watched', seen);
  await Promise.all([...Array(50).keys()].map((number) => promises.writeFile(at(`many-${number}`), `${number}`)));
  const many = await Promise.all([...Array(50).keys()].map((number) => promises.readFile(at(`many-${number}`), 'utf8')));
  say('many', many.every((text, number) => text === `${number}`));
  await promises.readFile(at('none')).catch((error) => say('none', error.code));
  await promises.rm(at('directory'), { recursive: true });
  await Promise.all([...Array(50).keys()].map((number) => promises.unlink(at(`many-${number}`))));
  say('left', fs.readdirSync(here).sort());
}

main().catch((error) => {
  console.log(error);
  process.exit(1);
});
