"""Known or new: identification, its threshold, and enrolment."""
