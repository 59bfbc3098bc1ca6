"""The environments of the chain: a bench that starts from what the stage before left, and one for the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.envs.wetlab.answers import parse_ions
from corral.envs.wetlab.bench import Vessel, check_vessel
from corral.envs.wetlab.chain import REST, group_of, is_last, report_prompt, score_report, score_stage, stage_prompt
from corral.envs.wetlab.environment import SAMPLE, WetlabEnvironment
from corral.envs.wetlab.tasks import GROUPS, WetlabTask
from corral.tasks import InputRef

LEFT = "_left"
"""The vessel in a stage's output. The underscore keeps it from agents: it tells all that the sample contains."""


class StageEnvironment(WetlabEnvironment):
    """One stage: its sample is the vessel that its parent left, and it leaves one itself."""

    def __init__(self, task: WetlabTask) -> None:
        super().__init__(task)
        self.parents = task.parents

    def lay_out(self) -> dict[str, Vessel]:
        """The sample, from the parent's output; of the first stage, from the task."""
        if not self.parents:
            return super().lay_out()
        left = InputRef(self.parents[0], LEFT).resolve(self.state.dependency_outputs)
        return {SAMPLE: check_vessel(left)}

    def get_task_prompt(self) -> str:
        """What is asked."""
        return stage_prompt(self.task, self.bench.inventory()[SAMPLE]["volume_ml"])

    def score(self) -> float:
        """F1 over the ions of the group; 0 where nothing was left for the next stage."""
        named = parse_ions(self.state.submitted_answer or "")
        score, parts = score_stage(named, self.task)
        feedback: dict[str, Any] = {"understood": named, **{key: round(value, 4) for key, value in parts.items()}}
        if not is_last(group_of(self.task)):
            held = self._rest()
            feedback["left"] = f"{held['water_kg'] * 1000:.1f} mL" if held else f'no liquid in a vessel "{REST}"'
            score = score if held else 0.0
        self.state.feedback = feedback
        return score

    def get_task_output(self) -> Mapping[str, Any]:
        """The vessel for the next stage."""
        held = self._rest()
        return {LEFT: held} if held else {}

    def _rest(self) -> Vessel | None:
        held = self.bench.export(REST) if REST in self.bench.vessels else None
        return held if held and held["pH"] is not None else None


class ReportEnvironment(WetlabEnvironment):
    """The end of the chain: all ions, from what the stages named and a reserve of the unknown."""

    def __init__(self, task: WetlabTask) -> None:
        super().__init__(task)
        self.parents = task.parents

    def get_task_prompt(self) -> str:
        """What is asked. Of the stages' answers only the ions are passed on."""
        answers = [InputRef(parent).resolve(self.state.dependency_outputs) for parent in self.parents]
        named = {group: parse_ions(answer or "") for group, answer in zip(GROUPS, answers, strict=True)}
        return report_prompt(self.task, named)

    def score(self) -> float:
        """The mean of the groups' scores."""
        named = parse_ions(self.state.submitted_answer or "")
        score, parts = score_report(named, self.task.answer)
        self.state.feedback = {"understood": named, **{key: round(value, 4) for key, value in parts.items()}}
        return score
