//! What a tenant's sandboxes are made with: network, template, MCP servers, what happens at the end of their life.
//!
//! A recipe is looked up when a sandbox is made and never later, so a changed one reaches a context with its next sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::domain::TenantId;
use crate::e2b::{CreateSandbox, MCP_TEMPLATE, McpServers, NetworkPolicy};

/// How a sandbox is made. The default is closed in both directions and killed at its end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recipe {
    /// The template; the provider's default one when left out.
    pub template: Option<String>,
    /// Other templates that a call may name.
    pub templates: Vec<String>,
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
    /// The provider's default template.
    pub default_template: String,
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

    /// What a tenant's sandboxes are made from when no call has named a template.
    pub(super) fn template_of(&self, tenant: &TenantId) -> &str {
        let recipe = self.of(tenant);
        match (&recipe.template, &recipe.mcp) {
            (Some(template), _) => template,
            (None, Some(_)) => MCP_TEMPLATE,
            (None, None) => &self.default_template,
        }
    }

    /// Whether a tenant's calls may name the template: its own one, and those that it was given.
    pub(super) fn may_name(&self, tenant: &TenantId, template: &str) -> bool {
        let mut all = self.of(tenant).templates.iter().map(String::as_str).chain([self.template_of(tenant)]);
        all.any(|allowed| allowed == template)
    }

    /// Whether someone may name a template.
    pub fn offer_templates(&self) -> bool {
        self.tenants.values().chain([&self.base]).any(|recipe| !recipe.templates.is_empty())
    }

    /// Whether someone's sandboxes reach a network.
    pub fn reach_a_network(&self) -> bool {
        let mut all = self.tenants.values().chain([&self.base]);
        all.any(|recipe| recipe.network != NetworkPolicy::Closed)
    }
}

impl Recipe {
    /// `template` is what a call has named.
    pub(super) fn create(
        &self,
        template: Option<&str>,
        life: Duration,
        metadata: BTreeMap<String, String>,
    ) -> CreateSandbox {
        CreateSandbox {
            template: template.or(self.template.as_deref()).map(str::to_owned),
            timeout: life,
            metadata,
            network: self.network.clone(),
            pause_on_timeout: self.pause_on_timeout,
            mcp: self.mcp.clone(),
            ..CreateSandbox::default()
        }
    }
}
