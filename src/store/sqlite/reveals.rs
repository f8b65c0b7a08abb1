//! Who opened which kind of sealed token.

use super::rows::Cells;
use super::{SqliteStore, failure, time};
use crate::domain::TenantId;
use crate::store::{NewReveal, RevealRow, StoreError};

impl SqliteStore {
    pub(super) async fn insert_reveal(&self, reveal: &NewReveal) -> Result<(), StoreError> {
        let mut transaction = self.write().await?;
        sqlx::query(
            "INSERT INTO reveals (id, tenant_id, conversation_id, path_id, kind, principal, opened, at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        )
        .bind(&reveal.id)
        .bind(reveal.key.tenant.as_str())
        .bind(reveal.key.conversation.as_str())
        .bind(reveal.key.path.as_str())
        .bind(&reveal.kind)
        .bind(&reveal.principal)
        .bind(reveal.opened)
        .bind(self.now())
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit().await.map_err(failure)
    }

    pub(super) async fn select_reveals(
        &self,
        tenant: Option<&TenantId>,
        limit: u32,
    ) -> Result<Vec<RevealRow>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, tenant_id, conversation_id, path_id, kind, principal, opened, at FROM reveals
              WHERE ?1 IS NULL OR tenant_id = ?1 ORDER BY at DESC, rowid DESC LIMIT ?2",
        )
        .bind(tenant.map(TenantId::as_str))
        .bind(limit)
        .fetch_all(&self.readers)
        .await
        .map_err(failure)?;
        let read = |row| {
            let cells = Cells::new(row, "reveals", "id");
            Ok(RevealRow {
                reveal: NewReveal {
                    id: cells.get("id")?,
                    key: cells.key()?,
                    kind: cells.get("kind")?,
                    principal: cells.get("principal")?,
                    opened: cells.get("opened")?,
                },
                at: time(cells.get("at")?),
            })
        };
        rows.iter().map(read).collect()
    }
}
