//! A volume whose partitions have a worker each.

use super::*;

/// Room for some groups.
pub const VOLUME_BYTES: u64 = 330 << 20;

/// An open volume, and what it lies on.
pub struct Several {
    pub workers: Workers,
    pub device: Arc<dyn Device>,
}

impl Several {
    /// A fresh file system on a fresh device.
    pub fn fresh(workers: u32) -> Several {
        let device = memory(VOLUME_BYTES);
        Volume::format(device.clone(), 8 << 20).close_volume();
        Several::open(device, workers)
    }

    pub fn open(device: Arc<dyn Device>, workers: u32) -> Several {
        let options = StoreOptions {
            partitions: workers,
            apart: true,
            ..options(8 << 20)
        };
        let lead = Engine::start(device.clone(), engine_options(true), |reactor| async move {
            Fs::open_with_orphans(Store::open(reactor, &options).await?).await
        });
        let workers = Workers::start(lead.expect("opening"), &device, &engine_options(true));
        let workers = workers.expect("workers");
        (workers.lead())
            .run(|fs| fs.delete_orphans())
            .expect("deleted");
        Several { workers, device }
    }

    pub fn try_open_file(&self, path: &str, flags: OpenFlags) -> Answer<Arc<OpenFile>> {
        let (worker, at) = self.workers.near(at(path));
        let opened = self
            .workers
            .engine(worker)
            .run(|fs| fs.open(at, flags, 0o644));
        opened.map_err(|error| error.errno())
    }

    pub fn open_file(&self, path: &str, flags: OpenFlags) -> Arc<OpenFile> {
        self.try_open_file(path, flags).expect(path)
    }

    /// Runs an operation on an open file.
    pub fn on<'a, T, F, Fut>(&'a self, file: &'a OpenFile, operation: F) -> Answer<T>
    where
        T: Send,
        F: FnOnce(&'a Fs, &'a OpenFile) -> Fut + Send,
        Fut: Future<Output = adit_base::Result<T>> + 'a,
    {
        let ran = (self.workers.of(file)).run(|fs| operation(fs, file));
        ran.map_err(|error| error.errno())
    }

    /// Runs an operation on a name in the worker of its directory.
    pub fn at<'a, T, F, Fut>(&'a self, path: &'a str, operation: F) -> Answer<T>
    where
        T: Send,
        F: FnOnce(&'a Fs, At<'a>) -> Fut + Send,
        Fut: Future<Output = adit_base::Result<T>> + 'a,
    {
        let (worker, at) = self.workers.near(at(path));
        let ran = self.workers.engine(worker).run(|fs| operation(fs, at));
        ran.map_err(|error| error.errno())
    }

    pub fn close_file(&self, file: &OpenFile) {
        self.on(file, |fs, file| fs.close(file)).expect("closing");
    }

    /// Everything that the checkers find wrong once it is closed, and opened with one worker.
    pub fn close(self) -> Vec<String> {
        self.workers.shutdown().expect("closing");
        let volume = Volume::open_on(self.device, 8 << 20);
        let problems = volume.check();
        volume.close_volume();
        problems
    }
}
