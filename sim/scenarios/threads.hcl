# The jobs of papers.hcl, whose threads wait for each other: two cores make a job 1.67 times
# as fast as one. On two cores the project's own trainers are 1.5 to 1.9 times as fast.
overhead = 0.2

node "node" { cores = 2 }

workload "papers" {
  jobs         = 10
  median_cpu_s = 200
  spread       = 0.5
}
