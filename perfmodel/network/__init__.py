"""Times of communication on a profile's network; links and schedules beside it."""
