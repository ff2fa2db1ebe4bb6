# Ten jobs of very different sizes on one node. What is known of their sizes is what the
# driver makes of their reports.
node "node" { cores = 2 }

workload "generated" {
  jobs         = 10
  median_cpu_s = 200 # lognormal sizes
  sigma        = 1
  spread       = 0.5 # they arrive in the first half of the time that they need together
}
