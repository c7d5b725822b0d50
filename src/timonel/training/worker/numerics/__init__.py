"""In which numbers a job computes, and what becomes of its gradients."""
