# The shim's ACL policy: read nodes, the limits of their garbage collection (agent), jobs and
# status files, register jobs and tag their versions, signal tasks, and keep its state in
# variables. For a token:
#
#   nomad acl policy apply ebbtide-shim jobspecs/acl/shim.hcl
#   nomad acl token create -name ebbtide-shim -policy ebbtide-shim
#
# For the job jobspecs/shim.hcl, which needs no token:
#
#   nomad acl policy apply -namespace ebbtide -job ebbtide-shim ebbtide-shim jobspecs/acl/shim.hcl
#
# With register-job, a job can use every driver that the clients enable: a user with the token,
# or with the right to submit that job, has those of the strongest one, in all namespaces. raw_exec and
# privileged containers mean root on the clients. shim-namespace.hcl restricts the shim to the
# namespaces that you name.
namespace "*" {
  capabilities = ["list-jobs", "read-job", "plan-job", "register-job", "alloc-lifecycle", "read-fs", "tag-job-version"]

  # leader.path
  variables {
    path "ebbtide/shim/*" {
      capabilities = ["list", "read", "write", "destroy"]
    }
  }
}

node {
  policy = "read"
}

agent {
  policy = "read"
}
