//! What travels inside the binary, and the private folder it is unpacked to.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// The simulated GPU's `libcuda.so.1`, which is its `libnvidia-ml.so.1` too.
static LIBCUDA: &[u8] = include_bytes!(env!("GPUSLICE_SIMCUDA"));
/// A program without a dynamic linker that goes round every limit set by preloading.
static ATTACKER: &[u8] = include_bytes!(env!("GPUSLICE_ATTACKER"));

/// A folder that nobody else can write and that goes when this does.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
    kept: bool,
}

/// Random names tried before giving up; a second try is already unlikely.
const TRIES: u32 = 16;

impl PrivateFolder {
    /// Makes a folder below the system's folder for temporary files. As an ordinary user it is that user's alone; root's
    /// can be entered by those who were told its name (a tenant with a user of its own), and written by root alone.
    ///
    /// # Errors
    /// No folder could be made.
    pub fn new(purpose: &str) -> io::Result<PrivateFolder> {
        let mode = if is_root() { 0o711 } else { 0o700 };
        let parent = std::env::temp_dir();
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..TRIES {
            let path = parent.join(format!("gpuslice-{purpose}-{:016x}", random()?));
            match make_folder(&path, mode) {
                Ok(()) => return Ok(PrivateFolder { path, kept: false }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => last = e,
                Err(e) => {
                    return Err(io::Error::new(
                        e.kind(),
                        format!(
                            "cannot make a folder in {}: {e}; set TMPDIR to one that you can write",
                            parent.display()
                        ),
                    ));
                }
            }
        }
        Err(last)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Somebody else removes it.
    pub fn keep(mut self) -> PathBuf {
        self.kept = true;
        self.path.clone()
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        if !self.kept {
            // What cannot be removed is left to whoever clears temporary files.
            let _removed = fs::remove_dir_all(&self.path);
        }
    }
}

/// Unpacks the simulated GPU's libraries into `folder`: one file under both names, which the dynamic linker loads once.
///
/// # Errors
/// As open(2) and write(2).
pub fn unpack_libraries(folder: &Path) -> io::Result<()> {
    write_new(&folder.join("libcuda.so.1"), LIBCUDA, 0o644)?;
    symlink("libcuda.so.1", folder.join("libnvidia-ml.so.1"))
}

/// Whether `folder` holds these very libraries, where nobody but us or root can change them.
pub fn has_libraries(folder: &Path) -> bool {
    let library = folder.join("libcuda.so.1");
    let safe = |path: &Path| {
        fs::symlink_metadata(path).is_ok_and(|m| {
            let ours = m.uid() == guard::sys::uids().1 || m.uid() == 0;
            ours && !m.is_symlink() && m.mode() & 0o022 == 0
        })
    };
    safe(folder)
        && safe(&library)
        && folder.join("libnvidia-ml.so.1").exists()
        && fs::read(&library).is_ok_and(|bytes| bytes == LIBCUDA)
}

/// Unpacks the static attacker into `folder`; returns its path.
///
/// # Errors
/// As open(2) and write(2).
pub fn unpack_attacker(folder: &Path) -> io::Result<PathBuf> {
    let path = folder.join("attacker");
    write_new(&path, ATTACKER, 0o755)?;
    Ok(path)
}

/// Makes a folder with exactly this mode, whatever the user's mask is: a tenant may be another user.
///
/// # Errors
/// As mkdir(2), which follows no link and takes nothing that is there.
pub fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file: File = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(mode))
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn is_root() -> bool {
    guard::sys::uids().1 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_libraries_are_one_file_and_the_folder_goes_with_its_owner() {
        let folder = PrivateFolder::new("test").unwrap();
        let path = folder.path().to_owned();
        assert!(!has_libraries(&path));
        unpack_libraries(&path).unwrap();
        assert!(has_libraries(&path));
        assert_eq!(fs::read(path.join("libnvidia-ml.so.1")).unwrap(), LIBCUDA);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o066,
            0,
            "others may not list or write it"
        );
        let again = unpack_libraries(&path).unwrap_err();
        assert_eq!(
            again.kind(),
            io::ErrorKind::AlreadyExists,
            "nothing that is there is written to"
        );
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        assert!(
            !has_libraries(&path),
            "somebody else could put another library there"
        );
        drop(folder);
        assert!(!path.exists());
    }
}
