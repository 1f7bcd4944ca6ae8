-- lock/acquire: acquire the lock for an owner id that belongs to one acquisition alone.
-- uses     lib/acl, lib/extend, lib/line, lib/polls
-- KEYS[1]  lock hash
-- KEYS[2]  channel on which the release will be published
-- KEYS[3]  memory of this acquisition's release: exists if a late copy must not acquire
-- KEYS[4]  line of waiting clients; for a client that polls, the mark of such clients
-- KEYS[5]  fencing token, for a fenced lock only
-- ARGV[1]  owner id
-- ARGV[2]  ttl, ms
-- ARGV[3]  publish command
-- ARGV[4]  how many tokens to reserve, for a fenced lock only
-- ARGV[5]  the client's place in line; "": it polls; missing: neither
-- ARGV[6]  when it took that place, as an earlier reply says; 0: not known. If it polls: ttl of its
--          mark, ms
-- ARGV[7]  1 if the client has no other waiter
-- returns  the first token, or 0, when acquired; {holder's pttl, holder} when somebody else holds
--          the lock, and for a client in line also when it took its place, and 1 if it must listen
--          on the common channel; "over" when this acquisition was released already
local lock_hash, channel, memory_key, line, token_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, ttl_ms, publish, tokens = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local place, since, is_last = ARGV[5], ARGV[6], ARGV[7] == '1'
local mark, mark_ttl_ms
if place == '' then
  place, mark, mark_ttl_ms = nil, line, since
end

-- leave_or_renew ends the place in line of a client without more waiters. Another client's turn
-- comes again after all others.
local function leave_or_renew()
  if place and is_last then
    give_up_place(line, place)
  elseif place then
    renew_place(line, place)
  end
end

-- One call for the usual case: the lock is free, and this acquisition was not released.
if redis.call('exists', lock_hash, memory_key) == 0 then
  local denied = publish_denied(publish, channel)
  if denied then
    return denied
  end
  local last_token = token_key and redis.call('incrby', token_key, tokens)
  redis.call('hset', lock_hash, owner, 1)
  redis.call('pexpire', lock_hash, ttl_ms)
  leave_or_renew()
  return token_key and last_token - tokens + 1 or 0
end
if redis.call('exists', memory_key) == 1 then
  return 'over'
end
if redis.call('hexists', lock_hash, owner) == 1 then
  -- A copy of this request, or the lock was handed off to this owner. It may have been extended
  -- since.
  extend(lock_hash, ttl_ms)
  leave_or_renew()
  return token_key and (redis.call('get', token_key) or 0) - tokens + 1 or 0
end
local refused = {redis.call('pttl', lock_hash), redis.call('hkeys', lock_hash)[1]}
if place then
  refused[3], refused[4] = take_place(line, place, since)
elseif mark then
  mark_poll(mark, mark_ttl_ms)
end
return refused
