//! Writes a folder so that it is there completely or not at all.

use std::collections::BTreeSet;
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{MANIFEST, Manifest, StoreError};
use crate::npy::{ArrayWriter, Element};

/// A folder in the making, under a temporary name beside its final one.
///
/// Dropping it before [`finish`](Self::finish) removes everything that was written.
#[derive(Debug)]
pub struct FolderWriter {
    target: PathBuf,
    parent: PathBuf,
    temporary: TempDir,
    /// Relative paths of the arrays that were begun.
    begun: BTreeSet<String>,
}

impl FolderWriter {
    /// Starts a folder that will be called `target`; whatever has that name already is left alone, and an error.
    pub fn create(target: &Path) -> Result<Self, StoreError> {
        Self::check_free(target)?;
        let prefix = Self::temporary_prefix(target).ok_or_else(|| StoreError::Io {
            doing: "create",
            path: target.to_owned(),
            source: std::io::Error::new(std::io::ErrorKind::InvalidInput, "the path does not end in a name"),
        })?;
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        std::fs::create_dir_all(&parent).map_err(StoreError::io("create", &parent))?;
        let temporary = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(".tmp")
            // As `mkdir` makes folders; the default of the crate would shut out everyone but the owner.
            .permissions(Permissions::from_mode(0o777))
            .tempdir_in(&parent)
            .map_err(StoreError::io("create a temporary folder in", &parent))?;
        Ok(Self {
            target: target.to_owned(),
            parent,
            temporary,
            begun: BTreeSet::new(),
        })
    }

    /// Refuses a target that exists, before the work that would be written there.
    pub fn check_free(target: &Path) -> Result<(), StoreError> {
        refuse_existing(target)
    }

    /// What the temporary names of `target` begin with in this process; `None` for a path that does not end in a name.
    pub fn temporary_prefix(target: &Path) -> Option<String> {
        let name = target.file_name()?.to_string_lossy();
        Some(format!(".{name}-{}-", std::process::id()))
    }

    /// The folder while it is written.
    pub fn path(&self) -> &Path {
        self.temporary.path()
    }

    /// Begins an array, for example `part-0/feat.npy`. Its record belongs into the manifest's list of files.
    pub fn array<T: Element>(&mut self, relative_path: &str, shape: &[usize]) -> Result<ArrayWriter<T>, StoreError> {
        let path = self.temporary.path().join(relative_path);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(StoreError::io("create", folder))?;
        }
        let writer = ArrayWriter::create_recorded(&path, relative_path.to_owned(), shape)?;
        self.begun.insert(relative_path.to_owned());
        Ok(writer)
    }

    /// Writes one array from memory.
    pub fn whole_array<T: Element>(
        &mut self,
        relative_path: &str,
        shape: &[usize],
        values: &[T],
    ) -> Result<crate::npy::FileRecord, StoreError> {
        let mut writer = self.array(relative_path, shape)?;
        writer.write(values)?;
        Ok(writer.finish()?)
    }

    /// Syncs every file, writes the manifest last, and gives the folder its name.
    pub fn finish<M: Manifest>(self, manifest: &M) -> Result<(), StoreError> {
        let folder = self.temporary.path();
        let manifest_path = folder.join(MANIFEST);
        manifest
            .check()
            .map_err(|problem| StoreError::inconsistent(&manifest_path, problem))?;
        let listed: BTreeSet<String> = manifest.files().iter().map(|file| file.path.clone()).collect();
        if let Some(path) = self.begun.symmetric_difference(&listed).next() {
            return Err(StoreError::inconsistent(
                &manifest_path,
                format!("{path} was written and not listed, or listed and not written"),
            ));
        }
        let mut folders = BTreeSet::from([folder.to_owned()]);
        for record in manifest.files() {
            super::manifest::check_length(folder, record)?;
            let path = folder.join(&record.path);
            sync(&path)?;
            folders.extend(path.parent().map(Path::to_owned));
        }
        let text = serde_json::to_vec_pretty(manifest).map_err(|error| StoreError::BadManifest {
            path: manifest_path.clone(),
            problem: error.to_string(),
        })?;
        let mut file = File::create_new(&manifest_path).map_err(StoreError::io("create", &manifest_path))?;
        file.write_all(&text)
            .and_then(|()| file.write_all(b"\n"))
            .and_then(|()| file.sync_all())
            .map_err(StoreError::io("write", &manifest_path))?;
        for folder in &folders {
            sync(folder)?;
        }
        // A folder that appeared meanwhile is only replaced by the system call if it is empty, so nothing is lost.
        refuse_existing(&self.target)?;
        std::fs::rename(folder, &self.target).map_err(StoreError::io("rename the finished folder to", &self.target))?;
        // From here on the temporary name is gone, and with it what dropping would remove.
        let _ = self.temporary.keep();
        sync(&self.parent)
    }
}

fn refuse_existing(target: &Path) -> Result<(), StoreError> {
    match std::fs::symlink_metadata(target) {
        Ok(_) => Err(StoreError::TargetExists {
            path: target.to_owned(),
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(StoreError::io("look at", target)(error)),
    }
}

fn sync(path: &Path) -> Result<(), StoreError> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(StoreError::io("sync", path))
}
