// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package publish

// Annotation is the name under which an event carries its kind, for tools.
const Annotation = "ebbtide"

// Kind is a kind of task event. Texts are Markdown, for the reference.
type Kind struct {
	Name string   // the event's Annotation
	Says []string // beginnings of its messages
	Doc  string   // its meaning, and what to do
}

// Kinds lists all kinds of events, those of a task's ordinary life first.
func Kinds() []Kind {
	return []Kind{
		{"category", []string{"converged: ", "slowed: ", "growing again: "}, "FlowCon's category became CL, with a flat curve, or one that is merely below α (policies without fair finish); or NL again."},
		{"quality", []string{"past its quality point: "}, "Other tasks may come first, within fair finish."},
		{"acceptable", []string{"acceptable target "}, "Once. The model is usable; the task yields CPU while others need it."},
		{"objective", []string{"objective target "}, "Once. The task is stopped and complete."},
		{"already-complete", []string{"not restarted: "}, "The agent died while it was stopping the task at its objective."},
		{"fair-finish", []string{"ended after "}, "Duration of a task that succeeded, and the duration expected under the fair share; if longer, the reason."},
		{"size", []string{"used "}, "The task succeeded; the next run with the same arguments is expected to use as much. `ebbtide_run` is for the shim."},
		{"unsized", []string{"its size is unknown again: "}, "Its steps gave a wrong total."},
		{"qoe", []string{"response time "}, "The target was missed in three consecutive intervals, or is met again. The node may have no CPU left."},
		{"no-progress", []string{"none of the ", "the task has written no output yet", "Nomad does not collect the task's output", "no value of a metric has been read", "its targets need a metric"}, "Nothing within `no_progress_after`, or none possible; the task has its fair share. Check its output with `ebbtide progress`."},
		{"progress", []string{"cannot read its progress from "}, "The task has its fair share."},
		{"diverged", []string{"the model has diverged: "}, "The metric is NaN or infinite. The task counts as converged until three finite values in a row."},
		{"targets", []string{"its targets are paused: "}, "The output reports another metric; set `ebbtide_metric` if it is the intended one."},
		{"signal-failed", []string{"cannot send "}, "`target.signal` was not delivered."},
		{"limit-failed", []string{"cannot set its CPU limit"}, "[Causes](#what-is-read-back). Retried after 1 s, later every minute."},
		{"cgroup", []string{"cannot find its cgroup"}, "CPU is neither measured nor limited; progress and targets are."},
		{"status", []string{"cannot write status files"}, "Disk full, or paths blocked. Task and limits are not affected."},
		{"move", []string{"requests a move to another node: "}, "The task has converged, others on the node still learn; the shim may move it."},
		{"checkpoint", []string{"checkpoint saved: "}, "Frozen until the given time, to be moved. `path`, `bytes`, `step`, `until` are for tools."},
		{"move-failed", []string{"cannot be moved, keeps running: "}, "Not saved in time, or cannot be frozen."},
		{"released", []string{"keeps running: "}, "The move was cancelled, or the lease ended."},
		{"suspended", []string{"suspended, "}, "The [queue](queue.md) gave its place to another job. The allocation counts as complete; the job waits for the next one."},
		{"stop", []string{"saved ", "stopped without a new checkpoint: "}, "Nomad stopped the task. If it saves too slowly, raise `kill_timeout`."},
		{"adopt", []string{"starts without the checkpoint of allocation "}, "The checkpoint of `ebbtide_adopt` cannot be used."},
		{"docker", []string{"the connection to Docker was lost and is back"}, "Docker was restarted; the container kept running."},
		{"removed", []string{"the container was removed from outside"}, "Probably by Nomad's [reaper](#the-reaper)."},
		{"earlier-copy", []string{"killed an earlier copy of this task"}, "The agent died, and Nomad started the task again (`exec`)."},
		{"gpu.setup", []string{"GPU: "}, "At the start: no share of the memory, no parking on this node, or GPU keys without a device."},
		{"gpu", []string{"GPU: "}, "Parked, yielding, or running again. A higher `ebbtide_priority` keeps the task on the card longer."},
		{"gpu.waits", []string{"GPU: "}, "Waiting for GPU memory for 10 s: see `gpu` in the status of the card's other tasks."},
		{"gpu.not-parked", []string{"GPU: cannot park its memory"}, "Usually the task's memory limit is too low: set `memory_max`."},
		{"gpu.lost", []string{"GPU: "}, "CUDA could not restore the memory. The processes are killed; Nomad's `restart` applies."},
	}
}
