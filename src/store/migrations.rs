//! Which migrations a database lacks: the part that both stores share.
//!
//! Migrations are applied in one transaction under a lock, all or none, and never edited afterwards. Not sqlx's
//! migrator: its lock lasts a session, which a transaction pooler breaks, and on SQLite it takes none.

use sha2::{Digest, Sha256};

use super::StoreError;

/// One file of `migrations/`.
#[derive(Debug)]
pub(super) struct Migration {
    pub(super) version: i64,
    pub(super) name: &'static str,
    pub(super) sql: &'static str,
}

impl Migration {
    pub(super) fn checksum(&self) -> Vec<u8> {
        Sha256::digest(self.sql).to_vec()
    }
}

/// A migration that this program knows, and whether the database has it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct MigrationStatus {
    /// Its number: the time it was written.
    pub version: i64,
    /// What it does.
    pub name: &'static str,
    /// Whether the database has it.
    pub applied: bool,
}

/// The migrations that are missing, oldest first.
///
/// # Errors
/// [`StoreError::TooNew`] when the database has one that this program does not know, [`StoreError::Edited`] when
/// one of them differs.
pub(super) fn pending(
    known: &'static [Migration],
    applied: &[(i64, Vec<u8>)],
) -> Result<Vec<&'static Migration>, StoreError> {
    for (version, checksum) in applied {
        match known.iter().find(|migration| migration.version == *version) {
            None => {
                let newest = known.iter().map(|migration| migration.version).max().unwrap_or(0);
                return Err(StoreError::TooNew { found: *version, known: newest });
            }
            Some(migration) if migration.checksum() != *checksum => {
                return Err(StoreError::Edited(*version));
            }
            Some(_) => {}
        }
    }
    let has = |migration: &&Migration| applied.iter().any(|(version, _)| *version == migration.version);
    Ok(known.iter().filter(|migration| !has(migration)).collect())
}

/// All that is known, with what is `pending`.
pub(super) fn status(known: &'static [Migration], pending: &[&Migration]) -> Vec<MigrationStatus> {
    known
        .iter()
        .map(|migration| MigrationStatus {
            version: migration.version,
            name: migration.name,
            applied: !pending.iter().any(|missing| missing.version == migration.version),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{postgres, sqlite};

    fn applied(known: &[Migration]) -> Vec<(i64, Vec<u8>)> {
        known.iter().map(|migration| (migration.version, migration.checksum())).collect()
    }

    #[test]
    fn every_file_is_in_the_program_and_in_order() {
        for (dir, known) in [("postgres", postgres::MIGRATIONS), ("sqlite", sqlite::MIGRATIONS)] {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(dir);
            let mut files: Vec<String> = std::fs::read_dir(path)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            files.sort();
            let named: Vec<String> =
                known.iter().map(|one| format!("{}_{}.sql", one.version, one.name)).collect();
            assert_eq!(files, named);
        }
    }

    #[test]
    fn a_newer_database_and_an_edited_migration_are_refused() {
        let known = postgres::MIGRATIONS;
        assert_eq!(pending(known, &[]).unwrap().len(), known.len());
        let mut rows = applied(known);
        assert!(pending(known, &rows).unwrap().is_empty());
        rows.push((99_991_231_000_000, vec![1]));
        assert!(matches!(pending(known, &rows), Err(StoreError::TooNew { found: 99_991_231_000_000, .. })));
        rows.pop();
        rows[0].1[0] ^= 1;
        assert!(matches!(pending(known, &rows), Err(StoreError::Edited(version)) if version == rows[0].0));
    }
}
