//! What a tenant's sandboxes are made with: network, template, MCP servers, what happens at the end of their life.
//!
//! A recipe is looked up when a sandbox is made and never later, so a changed one reaches a context with its next sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::domain::TenantId;
use crate::e2b::{CreateSandbox, McpServers, NetworkPolicy};

/// How a sandbox is made. The default is closed in both directions and killed at its end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recipe {
    /// The template; the provider's default one when left out.
    pub template: Option<String>,
    /// Who may be reached from inside.
    pub network: NetworkPolicy,
    /// At the end of the provider's life time: pause instead of kill. The context's next call resumes it.
    pub pause_on_timeout: bool,
    /// MCP servers to start in it.
    pub mcp: Option<McpServers>,
}

/// The deployment's recipe and those of the tenants that have one of their own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recipes {
    /// For every tenant without one of its own.
    pub base: Recipe,
    /// Whole recipes, not differences.
    pub tenants: BTreeMap<TenantId, Recipe>,
}

impl Recipes {
    /// A tenant's.
    pub fn of(&self, tenant: &TenantId) -> &Recipe {
        self.tenants.get(tenant).unwrap_or(&self.base)
    }

    /// Whether somebody's sandboxes reach a network.
    pub fn reach_a_network(&self) -> bool {
        let mut all = self.tenants.values().chain([&self.base]);
        all.any(|recipe| recipe.network != NetworkPolicy::Closed)
    }
}

impl Recipe {
    pub(super) fn create(&self, life: Duration, metadata: BTreeMap<String, String>) -> CreateSandbox {
        CreateSandbox {
            template: self.template.clone(),
            timeout: life,
            metadata,
            network: self.network.clone(),
            pause_on_timeout: self.pause_on_timeout,
            mcp: self.mcp.clone(),
            ..CreateSandbox::default()
        }
    }
}
