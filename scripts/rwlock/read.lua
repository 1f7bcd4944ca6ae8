-- rwlock/read: take the lock for reading; and, when it is granted, for companions that wait for it where the owner does.
-- uses     channel, readers, shared
-- KEYS[1]  lock hash
-- KEYS[2]  channel of releases
-- KEYS[3]  memory of this request: 1 entered, 2 left, 3 never to enter
-- KEYS[4]  claim of a waiting writer
-- KEYS[5]  shared counts
-- KEYS[6..]  memory of each companion's request: 2 left, 3 never to enter
-- ARGV[1]  owner id
-- ARGV[2]  ttl, ms
-- ARGV[3]  publish command
-- ARGV[4]  memory ttl, ms, when others may share the id; 0 when it belongs to this acquisition alone
-- ARGV[5]  1 to refuse a second count
-- ARGV[6]  1 when it is made under a hold of the same id: then it is "lost" if that id holds nothing
-- ARGV[7..]  each companion's id, which belongs to one acquisition alone, and its ttl, ms
-- returns  0 when ours, with companions {"in", and for each 1 when it is in, or 0}; {pttl of what is in the way, writer} when refused; "over" when
--          this acquisition has ended; "again" when refused a count; "lost" when the hold that it is made under is
local hash, prefix, id, ttl, shared = KEYS[1], prefix_of(KEYS[1]), ARGV[1], ARGV[2], ARGV[4] ~= '0'
local memory = redis.call('get', KEYS[3])
if memory == '2' or memory == '3' then
  return 'over'
end
local count = redis.call('hget', hash, id)
local alive = life(prefix, id, count) > 0

-- enter makes a reader's n-th hold.
local function enter(reader, n, lasting)
  redis.call('set', hold_key(prefix, reader, n), '1', 'px', lasting)
  redis.call('hset', hash, reader, n)
  raise(hash, lasting)
end

-- prolong sees that a hold lasts for the whole ttl.
local function prolong(reader, n, lasting)
  raise(hold_key(prefix, reader, n), lasting)
  raise(hash, lasting)
end

-- accompanied is the answer when granted. Companions come in with an owner that does; a repetition only finds them. One whose acquisition has
-- ended is not in, whatever others hold by its id.
local function accompanied(entering)
  if not KEYS[6] then
    return 0
  end
  local answer = {'in'}
  for i = 6, #KEYS do
    local companion, lasting, present = ARGV[2 * i - 5], ARGV[2 * i - 4], false
    if redis.call('exists', KEYS[i]) == 0 then
      local n = redis.call('hget', hash, companion)
      present = life(prefix, companion, n) > 0
      if present then
        prolong(companion, n, lasting)
      elseif entering then
        enter(companion, 1, lasting)
        present = true
      end
    end
    answer[i - 4] = present and 1 or 0
  end
  return answer
end

if alive and (memory or not shared) then -- this is a repetition
  prolong(id, count, ttl)
  return accompanied(false)
end
local mode = redis.call('hget', hash, 'mode')
local own = alive or (mode == 'write' and redis.call('hexists', hash, id .. ':write') == 1)
if not own then
  if ARGV[6] == '1' then
    return 'lost'
  end
  if mode ~= 'read' and redis.call('exists', hash) == 1 then
    return {redis.call('pttl', hash), writer_of(hash) or ''}
  end
  local claimed = redis.call('pttl', KEYS[4])
  if claimed > 0 then -- a writer waits: who is not in stays out
    return {claimed, ''}
  end
elseif ARGV[5] == '1' then
  return 'again'
end
local denied = may_publish(ARGV[3], KEYS[2]) or may_hold(prefix, id)
if denied then
  return denied
end
enter(id, alive and count + 1 or 1, ttl)
if not mode then
  redis.call('hset', hash, 'mode', 'read')
end
if shared then
  share(KEYS[5], id, not alive, ttl)
  redis.call('set', KEYS[3], '1', 'px', ARGV[4])
end
return accompanied(true)
