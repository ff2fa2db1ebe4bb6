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
		{"category", []string{"converged: ", "growing again: "}, "FlowCon's category became CL, or NL again."},
		{"acceptable", []string{"acceptable target "}, "Once. The model is usable; the task yields CPU while others need it."},
		{"objective", []string{"objective target "}, "Once. The task is stopped and complete."},
		{"already-complete", []string{"not restarted: "}, "The agent died while the task was being stopped at its objective."},
		{"fair-finish", []string{"ended after "}, "Time taken, and the time it would have taken with its fair share; why, if that is less."},
		{"size", []string{"used "}, "Ended as a success; the next run with the same arguments is expected to take as long. `ebbtide_run` is for the shim."},
		{"qoe", []string{"response time "}, "The service has missed its target in three intervals in a row, or meets it again. The node may have no more CPU to give."},
		{"no-progress", []string{"none of the ", "the task has written no output yet", "no value of a metric has been read"}, "No report within `no_progress_after`; the task has its fair share. Try `ebbtide progress` on its output."},
		{"progress", []string{"cannot read its progress from "}, "The source has an error; the task has its fair share."},
		{"diverged", []string{"the model has diverged: "}, "The metric is NaN or infinite. The task counts as converged until three finite values in a row."},
		{"targets", []string{"its targets are paused: "}, "The output reports another metric. If that is the one you mean, set `ebbtide_metric`."},
		{"signal-failed", []string{"cannot send "}, "The task did not get `target.signal`."},
		{"limit-failed", []string{"cannot set its CPU limit"}, "See [what is read back](#what-is-read-back). Tried again after 1 s, later every minute."},
		{"cgroup", []string{"cannot find its cgroup"}, "CPU is neither measured nor limited; progress and targets are."},
		{"status", []string{"cannot write status files"}, "Disk full, or something is in their place. Task and limits are not affected."},
		{"move", []string{"requests a move to another node: "}, "It has converged while others on the node learn, and the shim may move it."},
		{"checkpoint", []string{"checkpoint saved: "}, "Frozen until the time named, to be moved. `path`, `bytes`, `step`, `until` are for tools."},
		{"move-failed", []string{"cannot be moved, keeps running: "}, "It did not save in time, or cannot be frozen."},
		{"released", []string{"keeps running: "}, "The move was canceled, or the lease ended."},
		{"adopt", []string{"starts without the checkpoint of allocation "}, "That of `ebbtide_adopt` cannot be used."},
		{"docker", []string{"the connection to Docker was lost and is back"}, "Docker was restarted; the container lived on."},
		{"removed", []string{"the container was removed from outside"}, "Probably by [the reaper](#the-reaper)."},
		{"earlier-copy", []string{"killed an earlier copy of this task"}, "The agent died, and Nomad started the task anew (`exec`)."},
		{"gpu.setup", []string{"GPU: "}, "At the start: the job has no share of the memory, cannot be parked on this node, or has GPU keys without a device."},
		{"gpu", []string{"GPU: "}, "The task is parked or paused, or runs again. A higher `ebbtide_priority` keeps it on the card longer."},
		{"gpu.waits", []string{"GPU: "}, "It has waited for GPU memory for 10 s: see `gpu` in the status of the others on the card."},
		{"gpu.not-parked", []string{"GPU: cannot park its memory"}, "Mostly the task's memory limit is too low: give it a `memory_max`."},
		{"gpu.lost", []string{"GPU: "}, "CUDA could not restore its memory. Its processes are killed; Nomad's `restart` applies."},
	}
}
