-- latch/left: what is left to count down.
-- uses     count
-- KEYS[1]  count
-- returns  the count, 0 when there is no latch
return count(KEYS[1]) or 0
