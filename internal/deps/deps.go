// Package deps holds modules in go.mod while the code that uses them is being written.
package deps

import (
	_ "github.com/docker/docker/client"
	_ "github.com/hashicorp/cli"
	_ "github.com/hashicorp/go-hclog"
	_ "github.com/hashicorp/go-multierror"
	_ "github.com/hashicorp/hcl/v2/hclparse"
	_ "github.com/hashicorp/hcl/v2/hclsimple"
	_ "github.com/hashicorp/nomad/api"
	_ "github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	_ "github.com/hashicorp/nomad/drivers/shared/eventer"
	_ "github.com/hashicorp/nomad/jobspec2"
	_ "github.com/hashicorp/nomad/plugins/drivers/testutils"
	_ "github.com/mattn/go-isatty"
	_ "github.com/shoenig/test/must"
	_ "golang.org/x/sys/unix"
	_ "gonum.org/v1/gonum/mat"
	_ "gonum.org/v1/gonum/optimize"
	_ "gonum.org/v1/gonum/stat"
	_ "gonum.org/v1/plot"
	_ "gonum.org/v1/plot/plotter"
	_ "gonum.org/v1/plot/vg/vgimg"
	_ "pgregory.net/rapid"
)
