//! Makes and judges sealed memfds, the form in which extents change hands.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};

use super::{Error, PageSize};

/// `f_type` of hugetlbfs, from the kernel's `magic.h`.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Makes a memfd of `length` bytes in pages of `page`, sealed against shrinking, growing and
/// further sealing. Nothing is allocated yet: the process that touches a page is charged for it
/// (see [`super::Region::populate`]).
///
/// # Errors
/// [`Error::BadLength`] if `length` is no positive multiple of the page, [`Error::Call`] if the
/// kernel refuses (for huge pages: if it has none of that size configured).
pub fn create(name: &str, length: u64, page: PageSize) -> Result<OwnedFd, Error> {
    if length == 0 || !length.is_multiple_of(page.bytes()) {
        return Err(Error::BadLength {
            length,
            page: page.bytes(),
        });
    }
    let huge = match page {
        PageSize::Base => MemfdFlags::empty(),
        PageSize::Mib2 => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
        PageSize::Gib1 => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
    };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | huge;
    let fd = rustix::fs::memfd_create(name, flags).map_err(Error::call("memfd_create"))?;
    rustix::fs::ftruncate(&fd, length).map_err(Error::call("ftruncate"))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals).map_err(Error::call("sealing"))?;
    Ok(fd)
}

/// Checks that a descriptor from another process is an extent as declared: sealed against
/// shrinking and growing, of exactly `length` bytes, backed by pages of `page`.
///
/// # Errors
/// The first property that does not hold.
pub fn check(fd: BorrowedFd<'_>, length: u64, page: PageSize) -> Result<(), Error> {
    if length == 0 || !length.is_multiple_of(page.bytes()) {
        return Err(Error::BadLength {
            length,
            page: page.bytes(),
        });
    }
    // Only memfds (and tmpfs files) answer this; anything else is as good as unsealed.
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| Error::NotSealed)?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err(Error::NotSealed);
    }
    let stat = rustix::fs::fstat(fd).map_err(Error::call("fstat"))?;
    let found = u64::try_from(stat.st_size).unwrap_or(0);
    if found != length {
        return Err(Error::WrongLength {
            declared: length,
            found,
        });
    }
    let found = page_bytes(fd)?;
    if found != page.bytes() {
        return Err(Error::WrongPageSize {
            declared: page.bytes(),
            found,
        });
    }
    Ok(())
}

/// The page size in bytes that really backs a descriptor.
///
/// # Errors
/// [`Error::Call`] if the kernel does not say.
pub fn page_bytes(fd: impl AsFd) -> Result<u64, Error> {
    let stat = rustix::fs::fstatfs(fd).map_err(Error::call("fstatfs"))?;
    // The widths of these two fields differ between architectures.
    let kind = u64::try_from(stat.f_type).unwrap_or(0) & 0xffff_ffff;
    if kind == HUGETLBFS_MAGIC {
        Ok(u64::try_from(stat.f_bsize).unwrap_or(0))
    } else {
        Ok(PageSize::Base.bytes())
    }
}
