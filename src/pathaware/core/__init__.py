"""What adaptation is: learners, paths, rules, heads and meta-gradients."""

VERSION = "0.1.0"
