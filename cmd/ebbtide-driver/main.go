package main

import (
	_ "github.com/hashicorp/nomad/drivers/docker"
	_ "github.com/hashicorp/nomad/drivers/exec"
	_ "github.com/hashicorp/nomad/plugins"
)

func main() {}
