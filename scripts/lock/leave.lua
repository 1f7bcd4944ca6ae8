-- lock/leave: give up a client's place in line.
-- A free lock is passed on, because the client may have been woken for it. If no listener is left,
-- the last client in line becomes one.
-- uses     lib/line, lib/notify_free, lib/primary
-- KEYS[1]  lock_hash
-- KEYS[2]  channel
-- KEYS[3]  not used
-- KEYS[4]  not used
-- KEYS[5]  line: of waiting clients
-- ARGV[1]  place (text): the client's
-- ARGV[2]  publish (command)
-- returns  number: 1 if it passed the lock on, else 0
local lock_hash, channel, line, all_keys = KEYS[1], KEYS[2], KEYS[5], KEYS
local place, publish = ARGV[1], ARGV[2]

require_primary(lock_hash)
give_up_place(line, place)
if redis.call('exists', line) == 1 and redis.call('exists', lock_hash) == 0 then
  notify_free(all_keys, publish)
  return 1
end
if redis.pcall('zcount', line, '-inf', '(0') == 0 then -- else a release by Redisson goes unheard
  local last = redis.call('zrange', line, -1, -1)[1]
  if last then
    redis.pcall(publish, channel .. ':' .. last, '2')
  end
end
return 0
