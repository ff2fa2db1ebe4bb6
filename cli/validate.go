// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/cli"
	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/progress/file"
	"github.com/ebbtide/ebbtide/driver/progress/source"
	"github.com/ebbtide/ebbtide/driver/taskfs"
	"github.com/ebbtide/ebbtide/driver/validate"
)

type validateCommand struct{ command }

func newValidate(io IO) cli.Command { return validateCommand{command{io, "validate"}} }

func (validateCommand) Synopsis() string { return "Check jobspecs before they are registered" }

func (validateCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide validate [options] JOB.hcl...

  Checks jobspecs, HCL or JSON, for options that Ebbtide's driver would reject when
  a task starts, and for options without effect. - is standard input.

  Nomad is not needed. Fields of Nomad's own that this version's parser does not know
  are notes. With -address or NOMAD_ADDR the agent's parser checks them (with ACLs the
  token needs parse-job or submit-job); the values of variables are sent to it.

  Findings are printed one per line, as by compilers:

    job.hcl:14:9: error: train/workers/resnet: progress.preset: must be one of ...

  If there are no errors, a summary of each task's handling follows. Options of the
  docker and exec drivers are not checked.

  The exit status is 0 without errors, 1 with an error (with -strict: or a warning),
  2 for invalid arguments or unreadable files.

Options:

  -var NAME=VALUE   Value of an input variable; repeatable. NOMAD_VAR_NAME in the
                    environment is also read.
  -var-file PATH    File with values of input variables; repeatable.
  -strict           Treat warnings as errors.
  -json             Print JSON.
  -log FILE         Also print what Ebbtide would read from this sample of the
                    task's output, or of its progress.file, as by ebbtide
                    progress. - is standard input. Allowed with one jobspec;
                    without a report the exit status is 1.
  -task NAME        Task of the -log sample, if several run under Ebbtide: its
                    name, or JOB/GROUP/TASK.
` + nomadHelp)
}

// stdinName stands for standard input.
const stdinName = "-"

func (c validateCommand) Run(args []string) int {
	o := validate.Options{Env: os.Environ()}
	var strict, asJSON bool
	var log, task string
	flags := c.flags()
	flags.Func("var", "", func(v string) error {
		if !strings.Contains(v, "=") {
			return errors.New("must be NAME=VALUE")
		}
		o.Vars = append(o.Vars, v)
		return nil
	})
	flags.Func("var-file", "", func(path string) error {
		o.VarFiles = append(o.VarFiles, path)
		return nil
	})
	flags.BoolVar(&strict, "strict", false, "")
	flags.BoolVar(&asJSON, "json", false, "")
	flags.StringVar(&log, "log", "", "")
	flags.StringVar(&task, "task", "", "")
	nomad := nomadFlags(flags)
	if status, ok := c.parse(flags, args, c.Help()); !ok {
		return status
	}
	switch names := flags.Args(); {
	case len(names) == 0:
		return c.refuse(errors.New("must have at least one jobspec, or - for standard input"))
	case log != "" && len(names) > 1:
		return c.refuse(fmt.Errorf("-log: allowed with one jobspec, got %d", len(names)))
	case log != "" && asJSON:
		return c.refuse(errors.New("-log and -json cannot be used together: both write to standard output"))
	case log == "" && task != "":
		return c.refuse(errors.New("-task: must be used with -log"))
	case log == stdinName && names[0] == stdinName:
		return c.refuse(errors.New("-log and the jobspec cannot both be standard input"))
	}
	for _, path := range o.VarFiles {
		if _, err := os.ReadFile(path); err != nil {
			return c.refuse(fmt.Errorf("reading the variables: %w", err))
		}
	}
	if nomad.Address != "" || os.Getenv("NOMAD_ADDR") != "" {
		client, err := nomad.Client()
		if err != nil {
			return c.refuse(err)
		}
		defer client.Close()
		o.Parse = func(hcl, variables string) (string, error) { return parseByAgent(client, hcl, variables) }
	}
	var reports []validate.Report
	for _, name := range flags.Args() {
		body, shown, err := c.read(name)
		if err != nil {
			return c.refuse(fmt.Errorf("reading the jobspec: %w", err))
		}
		reports = append(reports, validate.Jobspec(shown, body, o))
	}
	write := validate.Write
	if asJSON {
		write = validate.WriteJSON
	}
	if err := write(c.io.Out, reports); err != nil {
		return c.failed(fmt.Errorf("write: %w", err))
	}
	n := validate.Count(reports)
	status := exitOK
	if n.Errors > 0 || strict && n.Warnings > 0 {
		status = exitError
	}
	if log == "" || n.Errors > 0 {
		return status
	}
	plan, err := chosen(reports[0].Tasks, task)
	if err != nil {
		return c.refuse(err)
	}
	return max(status, c.sample(plan, log))
}

// parseTimeout bounds a request to the agent, without which a jobspec can be checked as well.
const parseTimeout = 10 * time.Second

// parseByAgent returns what an agent's parser refuses in a job.
func parseByAgent(client *api.Client, hcl, variables string) (problems string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), parseTimeout)
	defer cancel()
	request := &api.JobsParseRequest{JobHCL: hcl, Variables: variables}
	_, err = client.Raw().Write("/v1/jobs/parse", request, new(json.RawMessage), (&api.WriteOptions{}).WithContext(ctx))
	var refused api.UnexpectedResponseError
	if errors.As(err, &refused) && refused.StatusCode() == http.StatusBadRequest {
		return strings.TrimPrefix(refused.Body(), "Failed to parse job: "), nil
	}
	return "", err
}

// read reads a jobspec; shown is its name in messages.
func (c validateCommand) read(name string) (body []byte, shown string, err error) {
	if name != stdinName {
		body, err = os.ReadFile(name)
		return body, name, err
	}
	body, err = io.ReadAll(c.io.In)
	return body, "<stdin>", err
}

// chosen selects the task to which a sample belongs.
func chosen(tasks []validate.Plan, name string) (validate.Plan, error) {
	var all []string
	var found []validate.Plan
	for _, t := range tasks {
		all = append(all, t.At)
		if name == "" || name == t.Task || name == t.At {
			found = append(found, t)
		}
	}
	switch {
	case len(all) == 0:
		return validate.Plan{}, errors.New("-log: no task of the job runs under Ebbtide")
	case len(found) == 0:
		return validate.Plan{}, fmt.Errorf("-task: must be one of %s, got %q", strings.Join(all, ", "), name)
	case len(found) > 1:
		return validate.Plan{}, fmt.Errorf("-log requires -task: one of %s", strings.Join(all, ", "))
	}
	if found[0].Unknown != "" {
		return validate.Plan{}, fmt.Errorf("-log: cannot determine what is read from task %s: %s", found[0].At, found[0].Unknown)
	}
	return found[0], nil
}

// sample shows what the task's settings read from a sample.
func (c validateCommand) sample(plan validate.Plan, path string) int {
	config := plan.Progress
	switch {
	case config.TensorBoard != "", config.Prometheus != "":
		return c.refuse(fmt.Errorf("-log: the progress of task %s is read from %s, not from a log", plan.At, source.Where(config)))
	case config.File != "" && path == stdinName:
		return c.refuse(fmt.Errorf("-log: the progress of task %s is read from %s: the sample must be a file", plan.At, source.Where(config)))
	case config.File != "":
		return c.sampleFile(config, path)
	}
	in := c.io.In
	if path != stdinName {
		f, err := os.Open(path)
		if err != nil {
			return c.refuse(fmt.Errorf("opening the sample: %w", err))
		}
		defer f.Close()
		in = f
	}
	parser, err := progress.NewParser(config)
	if err != nil {
		return c.refuse(err)
	}
	return c.show(in, path, parser, progressSummary{config: config, option: "progress.", empty: "the sample is empty"})
}

func (c validateCommand) sampleFile(config progress.Config, path string) int {
	if _, err := os.Stat(path); err != nil {
		return c.refuse(fmt.Errorf("opening the sample: %w", err))
	}
	root, err := taskfs.Open(filepath.Dir(path), "")
	if err != nil {
		return c.refuse(fmt.Errorf("opening the sample: %w", err))
	}
	defer root.Close()
	format := config.Format
	if format == "" {
		format = progress.FormatOf(config.File)
	}
	src, err := file.Open(root, filepath.Base(path), format, config)
	if err != nil {
		return c.refuse(fmt.Errorf("opening the sample: %w", err))
	}
	defer src.Close()
	encoder := json.NewEncoder(c.io.Out)
	encoder.SetEscapeHTML(false)
	count := int64(0)
	for {
		reports, err := src.Poll(context.Background())
		if err != nil {
			return c.failed(fmt.Errorf("read %s: %w", path, err))
		}
		for _, r := range reports {
			if config.Scale != 0 {
				r.Value *= config.Scale
			}
			count++
			if err := encoder.Encode(newProgressLine(r)); err != nil {
				return c.failed(fmt.Errorf("write: %w", err))
			}
		}
		if !src.Stats().More {
			break
		}
	}
	fmt.Fprintf(c.io.Err, "%s in %s\n", plural(count, "report"), plural(src.Stats().Lines, "line"))
	if note := src.Note(); note != "" {
		fmt.Fprintf(c.io.Err, "note: %s\n", note)
	}
	if count == 0 {
		return exitError
	}
	return exitOK
}
