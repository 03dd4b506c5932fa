"""Workflow files: read, checked, and compiled to what a run needs."""

from interlock.workflows.compile import CompiledWorkflow, compile_workflow
from interlock.workflows.definition import Step, WorkflowDefinition

__all__ = ["CompiledWorkflow", "Step", "WorkflowDefinition", "compile_workflow"]
