-- permitsemaphore/adopt: put fresh ids in the place of others, all or none.
-- uses     channel, count, permits
-- KEYS[1]  free permits
-- KEYS[2]  channel on which the release will be told
-- KEYS[3]  memory of the fresh ids' release
-- KEYS[4]  leases
-- ARGV[1]  publish command
-- ARGV[2]  ids of 16 bytes each
-- ARGV[3]  as many fresh ids
-- ARGV[4]  ttl, ms
-- returns  1, or 0 when not all of them are held
local at, wanted = now(), #ARGV[2] / 16
local ending = at + 1 + ARGV[4]
local theirs, live = taken(ARGV[2], at)
if redis.call('exists', KEYS[3]) == 1 or not count(KEYS[1]) then
  return 0
end
if #taken(ARGV[3], at) == wanted then -- a copy
  lease(ARGV[3], ending)
  return 1
end
if live < wanted then
  return 0
end
local denied = may_publish(ARGV[1], KEYS[2])
if denied then
  return denied
end
lease(ARGV[3], ending) -- first: a set that loses its last member is gone, with its ttl
drop(theirs)
return 1
