# The same models with TRADL's targets: a job ends when it has reached its objective.
node "node" { cores = 2 }

workload "papers" {
  jobs         = 10
  median_cpu_s = 250
  spread       = 0.15
  noise        = 0.003
  targets      = true
}
